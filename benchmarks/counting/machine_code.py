"""Reads the machine code and the resources of the CUDA kernels from the built module.

No GPU is needed, only NVIDIA's `cuobjdump` and `nvdisasm`, from a CUDA toolkit or their wheels, and `c++filt`.
"""

import hashlib
import json
import re
from collections import Counter
from typing import NamedTuple

from benchmarks.counting.devices import REGISTERS, registers_of_warp
from benchmarks.support.cuda_tools import absent, read, short_name
from jax_dcn._primitive import extension

TOOLS = ("cuobjdump", "nvdisasm", "c++filt")
WARPS = 64  # of an SM at most, from sm_80 to sm_100

ACCESS = {
    "global loads": re.compile(r"LDG\.|LD\.E"),
    "global stores": re.compile(r"STG\.|ST\.E"),
    "asynchronous copies": re.compile(r"LDGSTS\.|UBLKCP"),
    "local accesses": re.compile(r"LDL|STL"),  # spilled registers, or arrays that do not fit into registers
    "matrix instructions": re.compile(r"[HIQ]G?MMA\."),
}


class Kernel(NamedTuple):
    source: str
    name: str  # with its template arguments
    registers: int  # per thread
    stack: int  # bytes per thread
    local: int  # bytes per thread
    shared: int  # static bytes per block
    instructions: Counter  # how many of each opcode

    @property
    def resident_warps(self):
        """How many warps the registers of an SM have room for."""
        return min(REGISTERS // registers_of_warp(self.registers), WARPS)

    def accesses(self, kind):
        return {opcode: n for opcode, n in self.instructions.items() if ACCESS[kind].match(opcode)}

    def widths(self, kind):
        """How many instructions access how many bytes per thread."""
        counts = Counter()
        for opcode, n in self.accesses(kind).items():
            bits = re.search(r"\.(?:[US]?(8|16)|64|128|256)\b", opcode)
            counts[int(bits.group(0).lstrip(".US")) // 8 if bits else 4] += n
        return dict(sorted(counts.items(), reverse=True))


def missing():
    """Why the kernels cannot be read on this machine, or None."""
    if "cuda" not in extension.modules:
        return "jax_dcn was built without its CUDA kernels"
    return absent(*TOOLS)


def kernels(architecture):
    """All kernels of the built module for an architecture such as `sm_90`."""
    module = extension.modules["cuda"].__file__
    resources = read("cuobjdump", "--dump-resource-usage", "-arch", architecture, module)
    numbers = r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)"
    found = re.findall(rf"Function (\w+):\s+{numbers}", resources)
    code = read("cuobjdump", "--dump-sass", "-arch", architecture, module)
    functions = dict(re.findall(r"Function : (\w+)\n(.*?)\n\s+\.{5}", code, re.S))
    names = read("c++filt", *(name for name, *_ in found)).splitlines()
    result = []
    for plain, (name, *counts) in zip(map(short_name, names), found, strict=True):
        registers, stack, shared, local = map(int, counts)
        source = re.search(r"_GLOBAL__N__[0-9a-f]+_\d+_(\w+?)_cu_", name).group(1)
        result.append(Kernel(f"{source}.cu", plain, registers, stack, local, shared, Counter(opcodes(functions[name]))))
    return sorted(result)


def digest(kernels):
    """A hash of the instructions and the resources of all kernels, which does not depend on names."""
    found = sorted((k.registers, k.stack, k.local, k.shared, sorted(k.instructions.items())) for k in kernels)
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:12]


def architectures():
    """The architectures that the module has machine code for."""
    return [f"sm_{number}" for number in re.findall(r"(\w+)-real", extension.modules["cuda"].compiler)]


def embedded():
    """The architectures of the machine code and of the PTX in the module, as numbers such as 90."""
    module = extension.modules["cuda"].__file__
    found = (read("cuobjdump", option, module) for option in ("--list-elf", "--list-ptx"))
    return tuple({int(number) for number in re.findall(r"\.sm_(\d+)\.", text)} for text in found)


def opcodes(text):
    return re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", text, re.M)
