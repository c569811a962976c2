"""Reads the machine code and the resources of the CUDA kernels from the built module, by NVIDIA's tools."""

import re
from collections import Counter
from typing import NamedTuple

from benchmarks.support.cuda_tools import absent, read, short_name
from jax_dcn._primitive import extension

LOADS, STORES = re.compile(r"LDG\.|LD\.E"), re.compile(r"STG\.|ST\.E")  # of global memory
SPILLS = re.compile(r"LDL|STL")  # accesses to local memory


class Kernel(NamedTuple):
    source: str
    name: str  # with its template arguments
    registers: int  # per thread
    local_bytes: int  # per thread: the stack and local memory
    instructions: Counter  # how many of each opcode

    def counts(self, kind):
        """How many instructions of a kind access how many bytes per thread."""
        counts = Counter()
        for opcode, n in self.instructions.items():
            if kind.match(opcode):
                bits = re.search(r"\.[US]?(8|16|64|128|256)\b", opcode)
                counts[int(bits[1]) // 8 if bits else 4] += n
        return counts


def missing():
    """Why the kernels cannot be read on this machine, or None."""
    if "cuda" not in extension.modules:
        return "jax_dcn was built without its CUDA kernels"
    return absent("cuobjdump", "nvdisasm", "c++filt")


def kernels(architecture):
    """All kernels of the built module for an architecture such as `sm_90`."""
    module = extension.modules["cuda"].__file__
    resources = read("cuobjdump", "--dump-resource-usage", "-arch", architecture, module)
    found = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", resources)
    code = read("cuobjdump", "--dump-sass", "-arch", architecture, module)
    functions = dict(re.findall(r"Function : (\w+)\n(.*?)\n\s+\.{5}", code, re.S))
    names = map(short_name, read("c++filt", *(name for name, *_ in found)).splitlines())
    result = []
    for short, (name, registers, stack, local) in zip(names, found, strict=True):
        source = re.search(r"_GLOBAL__N__[0-9a-f]+_\d+_(\w+?)_cu_", name)[1]
        resources = int(registers), int(stack) + int(local)
        result.append(Kernel(f"{source}.cu", short, *resources, Counter(opcodes(functions[name]))))
    return result


def opcodes(text):
    return re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", text, re.M)


def architectures():
    """The architectures that the module has machine code for."""
    return [f"sm_{number}" for number in re.findall(r"(\w+)-real", extension.modules["cuda"].compiler)]


def embedded():
    """The architectures of the machine code and of the PTX in the module, as numbers such as 90."""
    module = extension.modules["cuda"].__file__
    found = (read("cuobjdump", option, module) for option in ("--list-elf", "--list-ptx"))
    return tuple({int(number) for number in re.findall(r"\.sm_(\d+)\.", text)} for text in found)
