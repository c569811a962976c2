"""Compiles programs of the CPU's kernels."""

import functools
import os
import pathlib
import platform
import subprocess
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import jax

from benchmarks.lowering.executed_ptx import LIB
from benchmarks.support import cached_build

HERE = pathlib.Path(__file__).parent
CPU = LIB / "cpu"

FUSED_CPU = LIB / "deform_conv" / "fused_cpu"
FUSED_PLAN = FUSED_CPU / "plan.cc"
# The kernels that are compiled for each instruction set.
CPU_KERNELS = [*sorted(LIB.glob("*/cpu*.cc")), FUSED_CPU / "kernels.cc"]
CPU_INSTRUCTION_SETS = CPU / "instruction_sets.cc"

COMPILER = "g++"
# No fused multiply-add, as in the package. Reports name lines, but no variables.
FLAGS = ["-std=c++17", "-O1", "-g1", "-fPIC", "-ffp-contract=off"]
INCLUDE = [f"-I{LIB}", f"-I{LIB / 'cuda'}", f"-I{HERE}", f"-I{CPU}", f"-isystem{jax.ffi.include_dir()}"]
CPU_FLAGS = ["-O0", "-DDCN_CPU", "-iquote", str(CPU), "-Wno-psabi"]
# The rows of the table in lib/cpu/instruction_sets.h that all kernels are compiled for, and those that only the fused
# convolution has kernels for.
X86_SETS, X86_PAIR_SETS = ["portable", "avx2", "avx512"], ["avx512_bf16", "amx"]
AARCH64_SETS, AARCH64_PAIR_SETS = ["neon"], ["neon_bf16"]
INSTRUCTION_SETS, PAIR_SETS = {"x86_64": (X86_SETS, X86_PAIR_SETS), "aarch64": (AARCH64_SETS, AARCH64_PAIR_SETS)}.get(
    platform.machine(), (["portable"], [])
)
PORTABLE = INSTRUCTION_SETS[:1]
FUSED_INSTRUCTION_SETS = [*INSTRUCTION_SETS, *PAIR_SETS]
# How a program is compiled: without or with sanitizers, or for aarch64 and as the package is, to be run by qemu.
SANITIZERS = {
    "none": [],
    # The checks of inlined functions take several times as long to compile.
    "memory": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-inline"],
    "threads": ["-fsanitize=thread"],
    "aarch64": ["-static", "-O3", "-ffp-contract=fast"],
}
COMPILERS = dict.fromkeys(SANITIZERS, COMPILER) | {"aarch64": "aarch64-linux-gnu-g++"}


def cpu_fused_program(
    sanitizer: str, sets: Collection[str] = FUSED_INSTRUCTION_SETS, is_emulated: bool = False
) -> pathlib.Path:
    """An executable of cpu_fused.cc and the CPU's fused kernels for all instruction sets, or PORTABLE.

    The program may emulate AMX.
    """
    instruction_sets = HERE / "emulated_instruction_sets.cc" if is_emulated else CPU_INSTRUCTION_SETS
    main = [FUSED_CPU / "fused.cc", CPU / "device.cc", FUSED_PLAN, instruction_sets]
    sources = [(HERE / "cpu_fused.cc", ["-iquote", str(CPU)]), *((path, _cpu_flags(sets)) for path in main)]
    for name in sets:
        is_kernel = name in (*INSTRUCTION_SETS, *AARCH64_SETS)
        source = "kernels.cc" if is_kernel else f"{name}.cc"
        own = [f"-DDCN_INSTRUCTION_SET={name}"] if is_kernel else []
        own += ["-include", "emulated_amx.h"] if is_emulated and name == "amx" else []
        sources.append((FUSED_CPU / source, [*_cpu_flags(sets), *own]))
    return _link("cpu_fused", sources, sanitizer)


def cpu_kernels(file: str, instructions: str, flags: Collection[str] = (), compiler: str = COMPILER) -> pathlib.Path:
    """A file of lib/, compiled for an instruction set of the CPU."""
    own = [f"-DDCN_INSTRUCTION_SET={instructions}"] if LIB / file in CPU_KERNELS else []
    return _compile((compiler, LIB / file, [*CPU_FLAGS, *own, *flags]))


@functools.cache
def has(sanitizer: str) -> bool:
    """Whether the compiler supports the sanitizer and its library is installed."""
    command = [COMPILERS[sanitizer], *SANITIZERS[sanitizer], "-x", "c++", "-", "-o", os.devnull]
    return subprocess.run(command, input="int main() {}", text=True, capture_output=True).returncode == 0


def _cpu_flags(sets):
    return [*CPU_FLAGS, *(["-DDCN_HAS_X86_KERNELS=0"] if list(sets) == PORTABLE else [])]


def _link(name, sources, sanitizer):
    """`sources` are pairs of a path and its own flags."""
    compiler, flags = COMPILERS[sanitizer], SANITIZERS[sanitizer]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(_compile, [(compiler, path, [*own, *flags]) for path, own in sources]))
    return cached_build.build(name, [compiler, *flags, "-pthread", *objects], [])


def _compile(compiler_source_and_flags):
    compiler, path, flags = compiler_source_and_flags
    command = [compiler, *FLAGS, *INCLUDE, *flags, "-x", "c++", "-c"]
    return cached_build.build(f"{path.stem}.o", [*command, path], [path, *_headers()])


@functools.cache
def _headers():
    return [*sorted(LIB.rglob("*.h")), *sorted(HERE.rglob("*.h"))]
