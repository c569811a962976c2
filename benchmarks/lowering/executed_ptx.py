"""Runs the compiled PTX of the CUDA kernels on the CPU, by the interpreter in tests/kernels/ptx.

nvcc compiles the kernels and their launchers as for the package, but to PTX only. They are linked with the interpreter
instead of the CUDA runtime.
"""

import contextlib
import ctypes
import functools
import json
import os
import pathlib
import shutil
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import jax

from benchmarks.lowering.substituted_kernels import register, substituted
from benchmarks.support import cuda_tools
from benchmarks.support.cached_build import ROOT, build

LIB = ROOT / "lib"
INTERPRETER = ROOT / "tests" / "kernels" / "ptx"
KERNELS = {path.stem: path for path in sorted((LIB / "cuda").glob("*.cu"))}
DEVICE_FLAGS = {"roi_pool": ["--fmad=false"]}  # as in CMakeLists.txt
HOST_COMPILER = "g++"
HOST_FLAGS = "-fPIC,-fno-gnu-unique"  # so that libraries in one process do not share static variables
ARCHITECTURE = 80  # of the PTX that the package is compiled from


NOT_CUDA = ("deform_conv_fused_cpu", "module")  # files of lib/ffi: handlers of the CPU only; the Python module


def missing() -> str | None:
    """Why PTX cannot be executed on this machine, or None."""
    if cuda_tools.find("nvcc") is None:
        return "nvcc not found"
    return None if shutil.which(HOST_COMPILER) else f"{HOST_COMPILER} not found"


def module(architecture: int = ARCHITECTURE) -> pathlib.Path:
    """A shared library of the FFI handlers, whose kernels are the PTX for compute_<architecture>."""
    ffi = [path for path in sorted((LIB / "ffi").glob("*.cc")) if path.stem not in NOT_CUDA]
    jobs = [
        *((compiled_kernel, path, architecture) for path in KERNELS.values()),
        *((_handlers, path) for path in (*ffi, *sorted((LIB / "cuda").glob("*.cc")), INTERPRETER / "handlers.cc")),
    ]
    return _link("module.so", _run(jobs), ["-shared"])


def program(
    source: pathlib.Path,
    architecture: int = ARCHITECTURE,
    kernels: Collection[str] = tuple(KERNELS),
    changed: pathlib.Path | None = None,
    recompiled: Collection[str] = (),
) -> pathlib.Path:
    """An executable of `source` and `kernels`.

    The kernels named by `recompiled` are compiled from the files in the folder `changed`, as far as it has them.
    """
    jobs = [(compiled_kernel, KERNELS[name], architecture) for name in kernels if name not in recompiled]
    for name in recompiled:
        path = changed / KERNELS[name].name
        jobs.append((compiled_kernel, path if path.exists() else KERNELS[name], architecture, changed))
    jobs.append((compiled_kernel, source, architecture))
    return _link(source.stem, _run(jobs), [])


def compiled_kernel(path: pathlib.Path, architecture: int, folder: pathlib.Path | None = None) -> pathlib.Path:
    """An object file of a CUDA source, with the PTX for compute_<architecture> and the lines that it comes from.

    Headers in the folder, if there is one, replace those of the package.
    """
    include = [*([f"-I{folder}"] if folder else []), f"-I{LIB}", f"-I{LIB / 'cuda'}"]
    target = f"arch=compute_{architecture},code=compute_{architecture}"
    command = [cuda_tools.find("nvcc"), "-std=c++17", "-lineinfo", *DEVICE_FLAGS.get(path.stem, []), *include]
    command += [
        "-gencode",
        target,
        "--no-compress",
        "--cudart=none",
        f"-Xcompiler={HOST_FLAGS}",
        "-x",
        "cu",
        "-c",
        path,
    ]
    own = sorted(folder.iterdir()) if folder else []
    return build(f"{path.stem}.o", command, [path, *own, *sorted(LIB.rglob("*.h"))])


class Interpreter:
    """The interpreter of a module of handlers."""

    def __init__(self, path: pathlib.Path, prefix: str):
        self._library = ctypes.CDLL(str(path))
        self._library.TakeInterpreterRecords.restype = ctypes.c_char_p
        self._library.SetInterpreterOption.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
        self.handlers = register(self._library, prefix)
        jax.ffi.register_ffi_target(f"{prefix}_initialize", jax.ffi.pycapsule(self._library.Initialize), platform="cpu")
        initialize = jax.ffi.ffi_call(f"{prefix}_initialize", jax.ShapeDtypeStruct((0,), "int32"), has_side_effect=True)
        jax.block_until_ready(initialize())
        self.set(requires_loading=1)

    def set(self, **options: int) -> None:
        """Sets fields of `Options` in interpreter.h."""
        for name, value in options.items():
            if not self._library.SetInterpreterOption(name.encode(), value):
                raise ValueError(f"the interpreter has no option {name}")

    def take_records(self) -> list[dict]:
        """The records of the launches since the last call. The option `counts` must be set."""
        return json.loads(self._library.TakeInterpreterRecords())


@functools.cache
def interpreter(architecture: int = ARCHITECTURE) -> Interpreter:
    return Interpreter(module(architecture), f"sm_{architecture}")


@contextlib.contextmanager
def executed(architecture: int = ARCHITECTURE, compute_capability: int | None = None) -> Iterator[Interpreter]:
    """Within it, jax_dcn on the CPU runs the PTX of its CUDA kernels, as for GPUs of this compute capability."""
    found = interpreter(architecture)
    with substituted(found.handlers, compute_capability):
        yield found


def launches(
    function,
    *arguments,
    sampled_blocks: int = 16,
    architecture: int = ARCHITECTURE,
    compute_capability: int | None = None,
) -> list[dict]:
    """The records of all launches of `function(*arguments)`, of which fused kernels run only `sampled_blocks`.

    The results of the function are therefore wrong, and races are not looked for.
    """
    with executed(architecture, compute_capability) as found:
        found.take_records()
        found.set(counts=1, checks_races=0, sampled_blocks=sampled_blocks)
        try:
            jax.block_until_ready(jax.jit(function)(*arguments))
        finally:
            found.set(counts=0, checks_races=1, sampled_blocks=0)
        return found.take_records()


def _run(jobs):
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda job: job[0](*job[1:]), jobs))


def _handlers(path):
    command = [cuda_tools.find("nvcc"), "-std=c++17", f"-Xcompiler={HOST_FLAGS},-O1", f"-I{LIB}", f"-I{LIB / 'cuda'}"]
    command += [f"-I{INTERPRETER}", f"-I{INTERPRETER.parent}", f"-isystem={jax.ffi.include_dir()}"]
    command += ["-include", INTERPRETER.parent / "stream.h"]
    command += ['-DDCN_COMPILER="nvcc"']
    headers = [*LIB.rglob("*.h"), *INTERPRETER.glob("*.h"), *INTERPRETER.parent.glob("*.h")]
    return build(f"{path.stem}.o", [*command, "-c", path], [path, *sorted(headers)])


@functools.cache
def _interpreter():
    """The interpreter as a shared library, so that it is initialized before the kernels are registered."""
    flags = "-fPIC,-O3,-march=native,-ffp-contract=off,-fno-trapping-math,-Wall,-Wextra"
    command = [cuda_tools.find("nvcc"), "-std=c++20", f"-Xcompiler={flags}", "-c"]
    headers = sorted(INTERPRETER.glob("*.h"))
    sources = [path for path in sorted(INTERPRETER.glob("*.cc")) if path.name != "handlers.cc"]
    objects = _run([(build, f"{path.stem}.o", [*command, path], [path, *headers]) for path in sources])
    return build("libinterpreter.so", [HOST_COMPILER, "-shared", *objects], [])


def _link(name, objects, flags):
    library = _interpreter()
    return build(name, [HOST_COMPILER, *flags, *objects, library, f"-Wl,-rpath,{library.parent}", "-pthread"], [])
