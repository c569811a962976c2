"""The operator by kernels: one custom call each for the result and for the cotangents of x and offset."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jax_dcn._primitive import jax_internals
from jax_dcn._primitive.chunks import flat


def forward(x, rois, offset, *, spec, platform):
    batch = x.shape[:-4]
    x, rois, offset = flat(x, 4), flat(rois, 2), flat(offset, 4)
    features = x.shape[-1] // math.prod(spec.group_size)
    shape = (*rois.shape[:2], *spec.output_size, features)
    pooled = _call("dcn_psroi_pool", x, rois, offset, spec=spec, shape=shape, dtype=x.dtype)
    return pooled.reshape(*batch, *shape[1:])


def cotangent(x, rois, offset, ct, *, requested, all_reduced, spec, platform):
    """The cotangents in the dtype of the sums, whether they are all-reduced or not."""
    shapes = {"x": x.shape, "rois": rois.shape, "offset": None if offset is None else offset.shape}
    x, rois, offset, ct = flat(x, 4), flat(rois, 2), flat(offset, 4), flat(ct, 4)

    def of(name):
        if name == "x":
            name = "dcn_psroi_pool_input_cotangent"
            return _call(name, rois, ct, offset, spec=spec, shape=x.shape, dtype=rois.dtype)
        if name == "offset":
            name = "dcn_psroi_pool_offset_cotangent"
            return _call(name, x, rois, ct, offset, spec=spec, shape=offset.shape, dtype=rois.dtype)
        return jnp.zeros_like(rois)

    return {name: of(name).reshape(shapes[name]) for name in requested}


def _call(name, *operands, spec, shape, dtype):
    arrays = jax_internals.vary_alike([operand for operand in operands if operand is not None])
    result = jax_internals.result_aval(jax.typeof(arrays[0]), shape, dtype)

    def pair(value):
        return np.array(value, np.int64)

    return jax.ffi.ffi_call(name, result)(
        *arrays,
        output_size=pair(spec.output_size),
        group_size=pair(spec.group_size),
        part_size=pair(spec.part_size),
        sample_per_part=pair(spec.sample_per_part),
        spatial_scale=spec.spatial_scale,
        trans_std=spec.trans_std,
    )
