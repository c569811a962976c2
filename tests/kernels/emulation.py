"""The CUDA handlers with emulated kernels, registered with XLA for the CPU."""

import contextlib
import ctypes
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from benchmarks.readers.substituted_kernels import register

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
    loaded = ctypes.CDLL(str(build.module()))
    jax.ffi.register_ffi_target("emulated_initialize", jax.ffi.pycapsule(loaded.Initialize), platform="cpu")
    return loaded


@functools.cache
def registered_handlers() -> dict[str, str]:
    """Maps custom call names to the names of the emulated handlers.

    They fail if they launch a kernel that was not loaded, or enqueue nothing although they have a result.
    """
    names = register(library(), "emulated")
    initialize()
    library().AllowOnlyLoadedKernels()
    return names


@contextlib.contextmanager
def machine(**differences: int) -> Iterator[None]:
    """Within it, the emulated machine differs from MACHINE."""
    library().SetMachine(ctypes.byref(Machine(**(MACHINE | differences))))
    try:
        yield
    finally:
        library().SetMachine(ctypes.byref(Machine(**MACHINE)))


def initialize(**differences: int) -> None:
    """Calls the handler of the initialize stage on a machine that differs from MACHINE."""
    with machine(**differences):
        done = jax.ffi.ffi_call("emulated_initialize", jax.ShapeDtypeStruct((0,), jnp.int32), has_side_effect=True)()
        done.block_until_ready()
