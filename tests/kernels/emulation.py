"""The CUDA handlers with emulated kernels, registered with XLA for the CPU."""

import contextlib
import ctypes
import functools
import pathlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from benchmarks.lowering.substituted_kernels import register

from . import build


class Machine(ctypes.Structure):
    """The emulated machine: execution::Machine of execution.h."""

    _fields_ = [
        ("driver_version", ctypes.c_int),
        ("device", ctypes.c_int),
        ("compute_capability", ctypes.c_int),
        ("has_machine_code", ctypes.c_bool),
        ("has_ptx", ctypes.c_bool),
        ("has_memory", ctypes.c_bool),
    ]


RUNTIME_VERSION = 13010
MACHINE = {
    "driver_version": RUNTIME_VERSION,
    "device": 0,
    "compute_capability": 90,
    "has_machine_code": True,
    "has_ptx": True,
    "has_memory": True,
}


@functools.cache
def library() -> ctypes.CDLL:
    """All handlers and kernels."""
    return _load(build.module(), "emulated_initialize")


@functools.cache
def small_library() -> ctypes.CDLL:
    """One kernel, and the handler that loads it."""
    return _load(build.initialize_module(), "small_initialize")


def _load(path: pathlib.Path, name: str) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(loaded.Initialize), platform="cpu")
    return loaded


@functools.cache
def registered_handlers() -> dict[str, str]:
    """Maps custom call names to the names of the emulated handlers.

    They fail if they launch a kernel that was not loaded, or enqueue nothing although they have a result.
    """
    names = register(library(), "emulated")
    _call("emulated_initialize")
    library().AllowOnlyLoadedKernels()
    return names


@contextlib.contextmanager
def machine(of: ctypes.CDLL, **differences: int) -> Iterator[None]:
    """Within it, the emulated machine of a library differs from MACHINE."""
    of.SetMachine(ctypes.byref(Machine(**(MACHINE | differences))))
    try:
        yield
    finally:
        of.SetMachine(ctypes.byref(Machine(**MACHINE)))


def initialize(**differences: int) -> None:
    """Calls the handler of the initialize stage on a machine that differs from MACHINE."""
    with machine(small_library(), **differences):
        _call("small_initialize")


def _call(name: str) -> None:
    jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((0,), jnp.int32), has_side_effect=True)().block_until_ready()
