"""Finds the compiled modules, registers their handlers with XLA, and calls them."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import extend_path
from types import ModuleType
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.typing import DTypeLike

from jax_dcn._primitive import jax_internals
from jax_dcn._primitive.jax_internals import PACKAGE

ResultType: TypeAlias = tuple[Sequence[int], DTypeLike]  # the shape and the type of a custom call's result
PLATFORMS = {"cpu": "cpu", "cuda": "CUDA"}  # lowering platform and module name: FFI platform


def _load() -> dict[str, ModuleType]:
    # In a source folder, whose jax_dcn hides the installed one, the compiled modules are still those installed.
    package, modules = sys.modules[PACKAGE], {}
    package.__path__ = extend_path(package.__path__, PACKAGE)
    for platform, ffi_platform in PLATFORMS.items():
        # An absent module was not built. A module that is present and cannot be imported raises its error.
        if find_spec(f"{PACKAGE}._{platform}") is None:
            continue
        modules[platform] = import_module(f"{PACKAGE}._{platform}")
        for name, stages in modules[platform].handlers.items():
            jax.ffi.register_ffi_target(name, stages, platform=ffi_platform)
    return modules


modules = _load()
if "cpu" not in modules:
    raise ImportError(
        f"no compiled kernels in {Path(__file__).parents[1]}, which is the source of jax_dcn, and jax_dcn is not "
        "installed: run `pip install .` in the source folder"
    )
# The handlers that one module has and the other lacks: programs may be exported for CUDA where its module is absent.
ONLY_ON_CPU = ("dcn_cpu_x_cotangent", "dcn_cpu_fused_forward", "dcn_cpu_fused_cotangents")
ONLY_ON_CUDA = ("dcn_sort_samples", "dcn_gather_samples")
custom_calls = (*modules["cpu"].handlers, *ONLY_ON_CUDA)
cuda_custom_calls = tuple(name for name in custom_calls if name not in ONLY_ON_CPU)

BUILD_CUDA = "JAX_DCN_CUDA=WHEELS pip install --force-reinstall --no-deps ."


def require(platform: str) -> None:
    """Raises an error if a computation is to run on `platform` and its kernels were not built.

    `jax.export` may lower for a platform that this machine does not have. That needs no kernels here.
    """
    if platform in modules:
        return
    try:
        jax.devices(platform)
    except RuntimeError:
        return
    raise RuntimeError(
        f"jax_dcn was built without its {platform} kernels, and this computation is to run on a {platform} device. "
        f"In jax_dcn's source folder, build them:\n  {BUILD_CUDA}\n"
        "or pass backend='reference' to run the slow jax.numpy form there."
    )


def call(
    name: str, *operands: jax.Array | None, results: Sequence[ResultType], aliases: Any = None, **attributes: Any
) -> Sequence[jax.Array]:
    """The results, of these shapes and types, of the custom call `name`. Operands that are None are left out.

    aliases: from the places of operands to those of the results that overwrite them.
    attributes: numbers; or tuples and lists of integers, also nested ones, which become flat arrays of int64.
    """
    arrays = jax_internals.vary_alike([operand for operand in operands if operand is not None])
    avals = [jax_internals.result_aval(jax.typeof(arrays[0]), shape, dtype) for shape, dtype in results]
    call = jax.ffi.ffi_call(name, avals, input_output_aliases=aliases)
    return call(*arrays, **{key: _encoded(value) for key, value in attributes.items()})


def _encoded(attribute: Any) -> Any:
    return np.array(attribute, np.int64).reshape(-1) if isinstance(attribute, (tuple, list)) else attribute
