"""The operator by kernels: one custom call each for the result, the cotangent of value, and those of the taps."""

from collections.abc import Collection

import jax
from jax.typing import ArrayLike

from jax_dcn._operators.aggregation import custom_calls, workspace
from jax_dcn._operators.aggregation.custom_calls import Taps
from jax_dcn._operators.aggregation.geometry import Spec
from jax_dcn._primitive.chunks import flat
from jax_dcn._primitive.target import Target


def forward(
    value: jax.Array,
    locations: jax.Array,
    weights: jax.Array,
    *,
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
    target: Target,
) -> jax.Array:
    """The result of the queries from `origin` on, as many as `locations` has."""
    dims = spec.image_dims + 2
    out = custom_calls.aggregate(flat(value, dims), _taps(locations, weights, spec, origin), spec)
    return out.reshape(*value.shape[:-dims], *out.shape[1:])


def cotangent(
    value: jax.Array,
    locations: jax.Array,
    weights: jax.Array,
    ct: jax.Array,
    *,
    requested: Collection[str],
    all_reduced: Collection[str],
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
    target: Target,
) -> dict[str, jax.Array]:
    """The cotangents, in the dtype of the sums; that of value in value's dtype, unless it is all-reduced."""
    shapes = {"value": value.shape, "locations": locations.shape, "weights": weights.shape}
    value, ct = flat(value, spec.image_dims + 2), flat(ct, spec.image_dims + 2)
    taps = _taps(locations, weights, spec, origin)
    out = {}
    if "value" in requested:
        out["value"] = custom_calls.value_cotangent(
            taps,
            ct,
            spec,
            shape=value.shape,
            dtype=locations.dtype if "value" in all_reduced else value.dtype,
            workspace_size=workspace.value_cotangent_elements(value, taps.locations, spec, target),
        )
    if tap_names := [name for name in ("locations", "weights") if name in requested]:
        out |= custom_calls.tap_cotangents(value, taps, ct, spec, requested=tap_names)
    return {name: out[name].reshape(shapes[name]) for name in requested}


def _taps(locations: jax.Array, weights: jax.Array, spec: Spec, origin: tuple[ArrayLike, ArrayLike]) -> Taps:
    return Taps(flat(locations, spec.image_dims + 3), flat(weights, spec.image_dims + 2), origin)
