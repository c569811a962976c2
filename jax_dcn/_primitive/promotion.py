"""Dtypes of sums, and code that does not depend on how users set jax's promotion of dtypes and ranks."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def sum_dtype(*dtypes: DTypeLike) -> Any:
    """The dtype in which sums are taken and positions computed, of arrays of these: float64 if one is, else float32."""
    return jnp.dtype(jnp.float64 if any(jnp.dtype(dtype) == jnp.float64 for dtype in dtypes) else jnp.float32)


def kernel_dtypes(data: DTypeLike, *positions: DTypeLike) -> tuple[Any, Any]:
    """The dtypes in which kernels take data and positions of these: positions of float64 only with data of float64."""
    wide = sum_dtype(data, *positions)
    return (wide if wide == jnp.float64 else jnp.dtype(data)), wide


def by_standard_rules(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`function` under jax's default rules: under `jax_numpy_dtype_promotion="strict"`, too, and no rank is refused."""

    @functools.wraps(function)
    def under_rules(*args: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*args, **keywords)

    return under_rules
