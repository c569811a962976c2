"""The operator by kernels: one custom call each for the result and for the cotangents of x and offset."""

from collections.abc import Collection

import jax
import jax.numpy as jnp

from jax_dcn._operators.roi_pool import custom_calls
from jax_dcn._operators.roi_pool.arguments import Spec
from jax_dcn._primitive.chunks import flat
from jax_dcn._primitive.target import Target


def forward(x: jax.Array, rois: jax.Array, offset: jax.Array | None, *, spec: Spec, target: Target) -> jax.Array:
    pooled = custom_calls.pool(flat(x, 4), flat(rois, 2), flat(offset, 4), spec)
    return pooled.reshape(*rois.shape[:-1], *pooled.shape[2:])


def cotangent(
    x: jax.Array,
    rois: jax.Array,
    offset: jax.Array | None,
    ct: jax.Array,
    *,
    requested: Collection[str],
    all_reduced: Collection[str],
    spec: Spec,
    target: Target,
) -> dict[str, jax.Array]:
    """The cotangents in the dtype of the sums, whether they are all-reduced or not."""
    flat_x, flat_rois, flat_offset, flat_ct = flat(x, 4), flat(rois, 2), flat(offset, 4), flat(ct, 4)
    out = {}
    if "x" in requested:
        d_x = custom_calls.input_cotangent(flat_rois, flat_ct, flat_offset, spec, shape=flat_x.shape)
        out["x"] = d_x.reshape(x.shape)
    if "rois" in requested:
        out["rois"] = jnp.zeros_like(rois)
    if offset is not None and flat_offset is not None and "offset" in requested:
        d_offset = custom_calls.offset_cotangent(flat_x, flat_rois, flat_ct, flat_offset, spec)
        out["offset"] = d_offset.reshape(offset.shape)
    return out


def max_forward(x: jax.Array, rois: jax.Array, *, spec: Spec, target: Target) -> jax.Array:
    pooled = custom_calls.max_pool(flat(x, 4), flat(rois, 2), spec)
    return pooled.reshape(*rois.shape[:-1], *pooled.shape[2:])


def max_cotangent(
    x: jax.Array,
    rois: jax.Array,
    ct: jax.Array,
    *,
    requested: Collection[str],
    all_reduced: Collection[str],
    spec: Spec,
    target: Target,
) -> dict[str, jax.Array]:
    """The cotangents in the dtype of the sums, whether they are all-reduced or not."""
    flat_x, flat_rois, flat_ct = flat(x, 4), flat(rois, 2), flat(ct, 4)
    out = {}
    if "x" in requested:
        argmax = custom_calls.max_pool_argmax(flat_x, flat_rois, spec)
        d_x = custom_calls.max_pool_input_cotangent(flat_rois, flat_ct, argmax, spec, shape=flat_x.shape)
        out["x"] = d_x.reshape(x.shape)
    if "rois" in requested:
        out["rois"] = jnp.zeros_like(rois)
    return out
