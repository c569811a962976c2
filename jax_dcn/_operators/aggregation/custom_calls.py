"""The XLA custom calls of the aggregation, one function each: operands and static parameters in, arrays out.

All arrays have one batch dimension. The handlers are in lib/aggregation/handlers.cc.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jax_dcn._operators.aggregation.geometry import Spec, Window
from jax_dcn._operators.aggregation.plan import ValueCotangent
from jax_dcn._primitive import jax_internals


class Taps(NamedTuple):
    """The taps that a call samples: those of some of the queries, which have one dimension or rows and columns."""

    locations: jax.Array  # [n, queries, M, T, 2]
    weights: jax.Array  # [n, queries, M, T]
    origin: tuple[ArrayLike, ArrayLike]  # the first row and column


def aggregate(value: jax.Array, taps: Taps, spec: Spec) -> jax.Array:
    """The result [n, queries, M, D], of value's type."""
    shape = (*taps.weights.shape[:-1], value.shape[-1])
    (out,) = _call("dcn_aggregate", value, *_operands(taps), spec=spec, results=[(shape, value.dtype)])
    return out


def value_cotangent(
    taps: Taps, d_out: jax.Array, spec: Spec, *, shape: Sequence[int], choices: ValueCotangent
) -> jax.Array:
    """The cotangent of value [n, pixels, M, D], of the planned type."""
    d_value, _ = _call(
        "dcn_aggregation_value_cotangent",
        *(*_operands(taps), d_out),
        spec=spec,
        results=[(shape, choices.dtype), ((choices.workspace_size,), jnp.int32)],
    )
    return d_value


def tap_cotangents(
    value: jax.Array, taps: Taps, d_out: jax.Array, spec: Spec, *, requested: Sequence[str]
) -> dict[str, jax.Array]:
    """The cotangents of "locations" and "weights", as requested."""
    arrays = {"locations": taps.locations, "weights": taps.weights}
    results = {name: (array.shape, array.dtype) for name, array in arrays.items() if name in requested}
    cotangents = _call(
        "dcn_aggregation_tap_cotangents",
        *(value, *_operands(taps), d_out),
        spec=spec,
        results=list(results.values()),
        **{f"{name}_requested": name in requested for name in arrays},
    )
    return dict(zip(results, cotangents, strict=True))


def _operands(taps: Taps) -> tuple[jax.Array, ...]:
    origin = jnp.stack([jnp.asarray(index, jnp.int32) for index in taps.origin])
    return taps.locations, taps.weights, origin


def _call(
    name: str,
    *operands: jax.Array,
    spec: Spec,
    results: Sequence[tuple[Sequence[int], DTypeLike]],
    **attributes: Any,
) -> Sequence[jax.Array]:
    """The custom call `name`; `results` are the shapes and types of its results."""
    arrays = jax_internals.vary_alike(list(operands))
    avals = [jax_internals.result_aval(jax.typeof(arrays[0]), shape, dtype) for shape, dtype in results]
    outs: Sequence[jax.Array] = jax.ffi.ffi_call(name, avals)(*arrays, **_attributes(spec), **attributes)
    return outs


def _attributes(spec: Spec) -> dict[str, Any]:
    if not isinstance(spec, Window):
        return {"window": False, "discrete": spec.discrete, "levels": np.array(spec.levels, np.int64).reshape(-1)}
    (top, _), (left, _) = spec.padding
    return {
        "window": True,
        "kernel_size": np.array(spec.kernel_size, np.int64),
        "strides": np.array(spec.strides, np.int64),
        "padding": np.array((top, left), np.int64),
        "kernel_dilation": np.array(spec.kernel_dilation, np.int64),
        "offset_scale": spec.offset_scale,
        "remove_center": spec.remove_center,
    }
