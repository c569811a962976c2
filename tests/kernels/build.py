"""Compiles programs of the CPU's kernels, the fuzzer, and a program of the CUDA kernels for a GPU."""

import functools
import os
import pathlib
import re
import subprocess
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from benchmarks.readers import cached_build, cuda_tools, executed_ptx
from benchmarks.readers.executed_ptx import DEVICE_FLAGS, LIB

HERE = pathlib.Path(__file__).parent
CPU = LIB / "cpu"
FUZZ = HERE.parent / "fuzz"

# Handlers that only one backend has; module.cc is compiled by neither program.
ONLY_ON_CUDA, ONLY_ON_CPU = {"deform_conv_fused.cc"}, {"deform_conv_fused_cpu.cc"}
FUSED_PLAN = CPU / "fused" / "plan.cc"

COMPILER = "g++"
# No fused multiply-add, as in the package. Reports name lines, but no variables.
FLAGS = ["-std=c++17", "-O1", "-g1", "-fPIC", "-ffp-contract=off"]
INCLUDE = [f"-I{LIB}", f"-I{LIB / 'cuda'}", f"-I{HERE}", f"-I{CPU}", f"-isystem{jax.ffi.include_dir()}"]
CPU_FLAGS = ["-O0", "-DDCN_CPU", "-iquote", str(CPU)]
SANITIZERS = {
    "none": [],
    # The checks of inlined functions take several times as long to compile.
    "memory": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-inline"],
    "threads": ["-fsanitize=thread"],
    "fuzzer": ["-fsanitize=fuzzer,address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"],
}
COMPILERS = {sanitizer: "clang++" if sanitizer == "fuzzer" else COMPILER for sanitizer in SANITIZERS}


def mutations(names: Iterable[str], always: Collection[str]) -> list:
    """Parameters of a mutation test. Only the names in `always` run by default; `make thorough` runs all."""
    return [pytest.param(name, marks=[] if name in always else [pytest.mark.thorough]) for name in names]


def cpu_fused_program(
    sanitizer: str, folder: pathlib.Path = CPU, changed: Collection[str] = (), is_emulated: bool = False
) -> pathlib.Path:
    """An executable of cpu_fused.cc and the CPU's fused kernels, of which `changed` are compiled in another folder.

    It may emulate AVX512-BF16 and AMX, in terms of AVX-512.
    """
    main = [CPU / "deform_conv_fused.cc", CPU / "device.cc"]
    paths = {path.stem: path for path in [*main, *sorted(CPU.glob("fused/*.cc"))]}
    own: dict[str, list[str]] = {}
    if is_emulated:
        paths["instruction_set"] = HERE / "emulated_instruction_set.cc"
        own = {name: ["-include", "emulated_instructions.h"] for name in ("avx512_bf16", "amx")}
    sources = [(path, [*CPU_FLAGS, *own.get(name, [])]) for name, path in paths.items() if name not in changed]
    sources += [
        (folder / paths[name].relative_to(CPU), [*_changed_cpu_flags(folder), *own.get(name, [])]) for name in changed
    ]
    return _link("cpu_fused", [*sources, (HERE / "cpu_fused.cc", ["-iquote", str(CPU)])], sanitizer)


def cpu_fused_file(name: str, folder: pathlib.Path = CPU, flags: Collection[str] = ()) -> list[pathlib.Path]:
    """A file of the CPU's fused kernels in a folder, preprocessed and compiled with debug information."""
    source, flags = folder / "fused" / f"{name}.cc", [*_changed_cpu_flags(folder), "-g", *flags]
    return [_compile((COMPILER, source, [*flags, *kind])) for kind in (["-E"], [])]


def last_task_program(name: str, kernels: dict[str, pathlib.Path]) -> pathlib.Path:
    """An executable of `name` and CPU kernels, with the Device of last_task/, which runs only a loop's last task.

    The kernels must be in a folder with a copy of that device.h, because they include it from there.
    """
    own = {
        path: ["-O0", "-iquote", str(HERE / "last_task"), "-iquote", str(CPU)]
        for path in [HERE / name, *kernels.values()]
    }
    return _link(pathlib.Path(name).stem, list(own.items()), "none")


def fuzzer(backend: str, sanitizer: str = "memory", changed: pathlib.Path = LIB) -> pathlib.Path:
    """The fuzzing program of a backend, "cpu" or "cuda", or of its handlers alone, "cpu_contract" or "contract".

    With the sanitizer "fuzzer" it is libFuzzer's; with any other it replays a corpus. Files in changed/ffi replace
    those of lib/ffi.
    """
    names = ["calls", "handlers", *(["replay"] if sanitizer != "fuzzer" else [])]
    is_cpu = backend in ("cpu", "cpu_contract")
    ffi = [(path, changed / "ffi" / path.name) for path in _handlers(ONLY_ON_CUDA if is_cpu else ONLY_ON_CPU)]
    ffi = [(new, ["-iquote", str(changed)]) if new.exists() and new != old else (old, []) for old, new in ffi]
    harness, kernels, compiled = [(FUZZ / f"{name}.cc", []) for name in names], [FUZZ / "contract.cc"], []
    if is_cpu:
        own = [*sorted(CPU.glob("*.cc")), *sorted(CPU.glob("fused/*.cc"))]
        kernels = own if backend == "cpu" else [*kernels, CPU / "handlers.cc", FUSED_PLAN]
        rest = [(path, [*flags, *CPU_FLAGS]) for path, flags in [*ffi, *((path, []) for path in kernels)]]
    else:
        cuda = ["-isystem", _toolkit_headers()]
        ffi = [*ffi, (LIB / "cuda" / "handlers.cc", [])]
        rest = [(path, [*flags, "-O0", *cuda, "-include", "ptx/stream.h"]) for path, flags in ffi]
        if backend == "cuda":
            harness = [(path, [*cuda, "-DDCN_EXECUTES_PTX"]) for path, _ in harness]
            compiled = executed_ptx.objects()
        else:
            rest += [(path, cuda) for path in kernels]
        rest.append((FUSED_PLAN, CPU_FLAGS))
    return _link(f"fuzz_{backend}", [*harness, *rest], sanitizer, compiled)


def device_program(name: str, kernels: dict[str, pathlib.Path]) -> pathlib.Path:
    """The same program compiled for the GPU of this machine, with the flags of the package."""
    nvcc = cuda_tools.find("nvcc")
    command = [nvcc, "-std=c++17", "-arch=native", "-lineinfo", f"-I{LIB}", f"-I{LIB / 'cuda'}"]

    def compile_(path):
        own = DEVICE_FLAGS.get(path.stem, [])
        return cached_build.build(f"{path.stem}.o", [*command, *own, "-x", "cu", "-c", path], [path, *_headers()])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_, [HERE / name, *kernels.values()]))
    return cached_build.build(pathlib.Path(name).stem, [nvcc, "-arch=native", *objects], [])


@functools.cache
def has(sanitizer: str) -> bool:
    """Whether the compiler supports the sanitizer and its library is installed."""
    command = [COMPILERS[sanitizer], *SANITIZERS[sanitizer], "-x", "c++", "-", "-o", os.devnull]
    return subprocess.run(command, input="int main() {}", text=True, capture_output=True).returncode == 0


def _handlers(without):
    return [path for path in sorted(LIB.glob("ffi/*.cc")) if path.name not in {"module.cc", *without}]


def _changed_cpu_flags(folder):
    """The folder's own headers come first."""
    return ["-O0", "-DDCN_CPU", "-iquote", str(folder), "-iquote", str(CPU)]


def _toolkit_headers():
    """The folder of the CUDA toolkit's headers."""
    command = [cuda_tools.find("nvcc"), "--dryrun", "-c", "any.cc"]
    steps = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True).stderr
    return re.search(r'INCLUDES="-I([^"]+)"', steps)[1]


def _link(name, sources, sanitizer, compiled=()):
    """`sources` are pairs of a path and its own flags; `compiled` are libraries and object files."""
    compiler, flags = COMPILERS[sanitizer], SANITIZERS[sanitizer]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(_compile, [(compiler, path, [*flags, *own]) for path, own in sources]))
    search = [f"-Wl,-rpath,{path.parent}" for path in compiled if path.suffix == ".so"]
    return cached_build.build(name, [compiler, *flags, "-pthread", *objects, *compiled, *search], [])


def _compile(compiler_source_and_flags):
    compiler, path, flags = compiler_source_and_flags
    command = [compiler, *FLAGS, *INCLUDE, *flags, "-x", "c++", "-c"]
    return cached_build.build(f"{path.stem}.o", [*command, path], [path, *_headers()])


@functools.cache
def _headers():
    return [*sorted(LIB.rglob("*.h")), *sorted(HERE.rglob("*.h")), *sorted(FUZZ.glob("*.h"))]
