"""The XLA custom calls of the pooling, one function each: operands and static parameters in, arrays out.

All arrays have one batch dimension. The handlers are in lib/roi_pool/handlers.cc.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jax_dcn._operators.roi_pool.arguments import CONVENTIONS, Spec
from jax_dcn._primitive import jax_internals


def pool(x: jax.Array, rois: jax.Array, offset: jax.Array | None, spec: Spec) -> jax.Array:
    """The result [n, R, out, out, D], of x's type."""
    features = x.shape[-1] // math.prod(spec.group_size)
    shape = (*rois.shape[:2], *spec.output_size, features)
    return _call("dcn_roi_pool", x, rois, offset, spec=spec, shape=shape, dtype=x.dtype)


def input_cotangent(
    rois: jax.Array, d_pooled: jax.Array, offset: jax.Array | None, spec: Spec, *, shape: Sequence[int]
) -> jax.Array:
    """The cotangent of x [n, N, H, W, C], of `rois`' type."""
    return _call("dcn_roi_pool_input_cotangent", rois, d_pooled, offset, spec=spec, shape=shape, dtype=rois.dtype)


def offset_cotangent(x: jax.Array, rois: jax.Array, d_pooled: jax.Array, offset: jax.Array, spec: Spec) -> jax.Array:
    """The cotangent of offset [n, R, part, part, 2·classes], of its type."""
    return _call(
        "dcn_roi_pool_offset_cotangent", x, rois, d_pooled, offset, spec=spec, shape=offset.shape, dtype=rois.dtype
    )


def max_pool(x: jax.Array, rois: jax.Array, spec: Spec) -> jax.Array:
    """The result [n, R, out, out, C] of max pooling, of x's type."""
    shape = (*rois.shape[:2], *spec.output_size, x.shape[-1])
    return _call("dcn_roi_max_pool", x, rois, spec=spec, shape=shape, dtype=x.dtype)


def max_pool_argmax(x: jax.Array, rois: jax.Array, spec: Spec) -> jax.Array:
    """The row and the column of the largest point of each bin and feature, int32[2, n, R, out, out, C]."""
    shape = (2, *rois.shape[:2], *spec.output_size, x.shape[-1])
    return _call("dcn_roi_max_pool_argmax", x, rois, spec=spec, shape=shape, dtype=jnp.int32)


def max_pool_input_cotangent(
    rois: jax.Array, d_pooled: jax.Array, argmax: jax.Array, spec: Spec, *, shape: Sequence[int]
) -> jax.Array:
    """The cotangent of x [n, N, H, W, C], of `rois`' type."""
    name = "dcn_roi_max_pool_input_cotangent"
    return _call(name, rois, d_pooled, argmax, spec=spec, shape=shape, dtype=rois.dtype)


def _call(name: str, *operands: jax.Array | None, spec: Spec, shape: Sequence[int], dtype: DTypeLike) -> jax.Array:
    arrays = jax_internals.vary_alike([operand for operand in operands if operand is not None])
    return jax.ffi.ffi_call(name, jax_internals.result_aval(jax.typeof(arrays[0]), shape, dtype))(
        *arrays,
        output_size=np.array(spec.output_size, np.int64),
        group_size=np.array(spec.group_size, np.int64),
        part_size=np.array(spec.part_size, np.int64),
        points=np.array(spec.points, np.int64),
        convention=np.int64(CONVENTIONS.index(spec.convention)),
        spatial_scale=spec.spatial_scale,
        trans_std=spec.trans_std,
    )
