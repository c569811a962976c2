"""Compiles CUDA sources to machine code that names the PTX which each of its instructions comes from."""

import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.counting import sass
from benchmarks.lowering.executed_ptx import compiled_kernel
from benchmarks.support.cuda_tools import absent, read, short_name

TOOLS = ("nvcc", "ptxas", "cuobjdump", "nvdisasm", "c++filt")


class Function(NamedTuple):
    name: str  # with its template arguments
    registers: int  # per thread
    static_shared: int  # bytes per block
    ptx: list[tuple[int, str]]  # line and opcode of each instruction
    blocks: list[sass.Block]


def missing():
    """Why nothing can be compiled on this machine, or None."""
    return absent(*TOOLS)


def compile_ptx(path, architecture):
    """The PTX of a file for compute_<architecture>, which is also the PTX that the interpreter executes."""
    dump = read("cuobjdump", "--dump-ptx", compiled_kernel(path, architecture))
    return dump[dump.index(".version") :]


def assemble(ptx, architecture, kernels=None):
    """The machine code for an architecture such as `sm_90`, by linker names without the hashes of the file.

    `kernels` are parts of linker names. Without them, all kernels are assembled.
    """
    instructions = {
        name: found
        for name, found in ptx_instructions(ptx).items()
        if kernels is None or any(k in name for k in kernels)
    }
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "kernels.ptx", Path(folder) / "kernels.cubin"
        source.write_text(ptx)
        entries = [] if kernels is None else ["--entry", ",".join(instructions)]
        read("ptxas", "-arch", architecture, "-lineinfo", *entries, source, "-o", cubin)
        blocks = sass.functions(read("nvdisasm", "-gp", "-hex", "-c", cubin))
        usage = read("cuobjdump", "--dump-resource-usage", cubin)
    resources = {name: counts for name, *counts in re.findall(r"Function (\w+):\s+REG:(\d+) \S+ SHARED:(\d+)", usage)}
    names = dict(zip(instructions, read("c++filt", *instructions).splitlines(), strict=True))
    return {
        linker_name(name): Function(short_name(names[name]), *map(int, resources[name]), found, blocks[name])
        for name, found in instructions.items()
    }


def ptx_instructions(text):
    """The line and the opcode of each instruction of each kernel."""
    found, current, depth = {}, None, 0
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("//")[0].strip()
        if match := re.match(r"(?:\.visible |\.weak )?\.entry (\w+)", line):
            current, depth = found.setdefault(match[1], []), 0
        elif current is not None and (match := re.match(r"(?:\{\s*)?(?:@!?%?\w+\s+)?([a-z][\w.:]*)\b.*;", line)):
            current.append((number, match[1]))
        depth += line.count("{") - line.count("}")
        if line.endswith("}") and depth == 0:
            current = None
    return found


def linker_name(name):
    """The mangled name without the hashes that nvcc makes of a file's path and content."""
    return re.sub(r"_GLOBAL__N__[0-9a-f]{8}_(\d+_\w+?_cu)_[0-9a-f]{8}", r"_GLOBAL__N__\1", name)
