"""Runs jax_dcn on the CPU as on a GPU, with other handlers in place of the CUDA kernels'."""

import contextlib
import ctypes
from unittest import mock

import jax
from jax._src.interpreters import mlir  # jax has no public function that returns the lowering of a platform

from jax_dcn._primitive import target
from jax_dcn._primitive.extension import cuda_custom_calls
from jax_dcn._primitive.primitive import PRIMITIVES
from jax_dcn._primitive.target import Target


def register(library: ctypes.CDLL, prefix: str) -> dict[str, str]:
    """Registers the handlers of a shared library, which its function FindHandler returns, for the CPU.

    Maps the names of the custom calls to the names under which these handlers are registered.
    """
    library.FindHandler.restype = ctypes.c_void_p
    names = {name: f"{prefix}_{name}" for name in cuda_custom_calls}
    for name, substitute in names.items():
        handler = jax.ffi.pycapsule(library.FindHandler(name.encode()))
        jax.ffi.register_ffi_target(substitute, handler, platform="cpu")
    return names


@contextlib.contextmanager
def substituted(names: dict[str, str]):
    """A context in which jax_dcn is lowered on the CPU as for CUDA, to the handlers with these names."""
    real_call = jax.ffi.ffi_call

    def substitute_call(name, *args, **kwargs):
        return real_call(names[name], *args, **kwargs)

    lowerings = mlir._platform_specific_lowerings
    rules = {primitive: rule for primitive, rule in lowerings["cuda"].items() if primitive in PRIMITIVES}
    with (
        mock.patch.object(jax.ffi, "ffi_call", substitute_call),
        mock.patch.dict(lowerings["cpu"], rules),
        mock.patch.object(target, "of_lowering", lambda platform, _: Target(platform, None)),
    ):
        jax.clear_caches()
        yield
    jax.clear_caches()
