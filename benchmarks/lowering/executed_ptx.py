"""Runs the compiled PTX of the CUDA kernels on the CPU, by the interpreter in tests/kernels/ptx.

nvcc compiles the kernels and their launchers as for the package, but to PTX only. They are linked with the interpreter
instead of the CUDA runtime.
"""

import ctypes
import functools
import os
import pathlib
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import jax

from benchmarks.lowering.substituted_kernels import register
from benchmarks.support import cuda_tools
from benchmarks.support.cached_build import ROOT, build

LIB = ROOT / "lib"
INTERPRETER = ROOT / "tests" / "kernels" / "ptx"
KERNELS = sorted(LIB.glob("*/cuda*.cu"))
DEVICE_FLAGS = {"roi_pool/cuda": ["--fmad=false"]}  # as in CMakeLists.txt
HOST_COMPILER = "g++"
HOST_FLAGS = "-fPIC,-fno-gnu-unique"  # so that libraries in one process do not share static variables
ARCHITECTURE = 80  # of the PTX that the package is compiled from


def missing() -> str | None:
    """Why PTX cannot be executed on this machine, or None."""
    if cuda_tools.find("nvcc") is None:
        return "nvcc not found"
    return None if shutil.which(HOST_COMPILER) else f"{HOST_COMPILER} not found"


def module(architecture: int, nvcc: str | None = None) -> pathlib.Path:
    """A shared library of the FFI handlers, whose kernels are the PTX for compute_<architecture>.

    Another nvcc than the one that cuda_tools finds may compile it.
    """
    handlers = [*sorted(LIB.glob("*/handlers.cc")), *sorted(LIB.glob("*/handlers_cuda*.cc"))]
    others = [*sorted((LIB / "cuda").glob("*.cc")), INTERPRETER / "handlers.cc"]
    jobs = [(_handlers, path, nvcc) for path in (*handlers, *others)]
    jobs += [(_kernel, path, architecture, nvcc) for path in KERNELS]
    return _link("module.so", [*_run(jobs), _interpreter(nvcc)], ["-shared"])


def program(source: pathlib.Path, *, has_kernels: bool = False) -> pathlib.Path:
    """An executable of a CUDA source and, if it needs them, the package's kernels."""
    sources = [source, *(KERNELS if has_kernels else ())]
    return _link(source.stem, [*_run([(_kernel, path, ARCHITECTURE) for path in sources]), _interpreter()], [])


def run(program: pathlib.Path, *arguments: str | pathlib.Path) -> tuple[int, str]:
    """The exit status and output of a program."""
    result = subprocess.run([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return result.returncode, result.stdout


def _kernel(path: pathlib.Path, architecture: int, nvcc: str | None = None) -> pathlib.Path:
    """An object file of a CUDA source, with the PTX for compute_<architecture> and the lines that it comes from."""
    target = f"arch=compute_{architecture},code=compute_{architecture}"
    command = [
        _compiler(nvcc),
        "-std=c++17",
        "-lineinfo",
        *DEVICE_FLAGS.get(f"{path.parent.name}/{path.stem}", []),
        f"-I{LIB}",
        f"-I{LIB / 'cuda'}",
    ]
    command += ["-gencode", target, "--no-compress", "--cudart=none", f"-Xcompiler={HOST_FLAGS}"]
    command += ["-x", "cu", "-c", path]
    return build(f"{path.stem}.o", command, [path, *sorted(path.parent.glob("*.h")), *sorted(LIB.rglob("*.h"))])


class Interpreter:
    """The interpreter of a module of handlers."""

    def __init__(self, path: pathlib.Path, prefix: str):
        self._library = ctypes.CDLL(str(path))
        self._library.FindInterpreterOption.restype = ctypes.POINTER(ctypes.c_uint64)
        self.handlers = register(self._library, prefix)
        self._initialize = f"{prefix}_initialize"
        jax.ffi.register_ffi_target(self._initialize, jax.ffi.pycapsule(self._library.Initialize), platform="cpu")
        self.initialize()
        self.set(requires_loading=1)

    def set(self, **options: int) -> dict[str, int]:
        """Sets fields of `Options` in interpreter.h, and returns the values that they had."""
        before = {}
        for name, value in options.items():
            option = self._library.FindInterpreterOption(name.encode())
            if not option:
                raise ValueError(f"the interpreter has no option {name}")
            before[name], option[0] = option[0], value
        return before

    def initialize(self, **machine: int) -> None:
        """Calls the handler of the initialize stage, while these options describe the machine."""
        before = self.set(**machine)
        try:
            nothing = jax.ShapeDtypeStruct((0,), "int32")
            jax.block_until_ready(jax.ffi.ffi_call(self._initialize, nothing, has_side_effect=True)())
        finally:
            self.set(**before)


@functools.cache
def interpreter(architecture: int, nvcc: str | None = None) -> Interpreter:
    path = module(architecture, nvcc)
    return Interpreter(path, f"sm_{architecture}_{path.parent.name}")


def _run(jobs):
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda job: job[0](*job[1:]), jobs))


def _compiler(nvcc):
    return nvcc or cuda_tools.find("nvcc")


def _handlers(path, nvcc):
    command = [_compiler(nvcc), "-std=c++17", f"-Xcompiler={HOST_FLAGS},-O1", f"-I{LIB}", f"-I{LIB / 'cuda'}"]
    command += [f"-I{INTERPRETER}", f"-isystem={jax.ffi.include_dir()}"]
    command += [
        "-include",
        INTERPRETER / "stream.h",
        '-DDCN_COMPILER="nvcc"',
        '-DDCN_ARCHITECTURES="80-real 90-real 80-virtual"',
        "-DDCN_CUDA_VERSION=13010",
    ]
    headers = [*LIB.rglob("*.h"), *INTERPRETER.glob("*.h")]
    return build(f"{path.stem}.o", [*command, "-c", path], [path, *sorted(headers)])


@functools.cache
def _interpreter(nvcc=None):
    """The interpreter as a shared library, so that it is initialized before the kernels are registered."""
    flags = "-fPIC,-O3,-march=native,-ffp-contract=off,-fno-trapping-math,-Wall,-Wextra"
    command = [_compiler(nvcc), "-std=c++20", f"-Xcompiler={flags}", "-c"]
    headers = sorted(INTERPRETER.glob("*.h"))
    sources = [path for path in sorted(INTERPRETER.glob("*.cc")) if path.name != "handlers.cc"]
    objects = _run([(build, f"{path.stem}.o", [*command, path], [path, *headers]) for path in sources])
    return build("libinterpreter.so", [HOST_COMPILER, "-shared", *objects], [])


def _link(name, objects, flags):
    search = f"-Wl,-rpath,{_interpreter().parent}"
    return build(name, [HOST_COMPILER, *flags, *objects, search, "-pthread"], [])
