"""The forward in one custom call, for CUDA: samples are multiplied on the matrix units where they are taken.

Which calls it takes, and in tiles of what size, is decided here; what it does not take goes by `kernels.forward`. The
two differ in an infinite mask, which here is NaN where a sample has a corner of weight 0.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from jax_dcn import _compat
from jax_dcn._chunks import flat
from jax_dcn.deform_conv.arguments import attributes_of
from jax_dcn.deform_conv.reference import groups_and_taps

VECTOR_BYTES = 16
TILE_PIXELS = 128
TILE_FEATURES = (64, 128, 256)
FEW_BLOCKS = 128  # about the multiprocessors of a large GPU


def takes(x, offset, weight, spec, platform) -> bool:
    """Whether the fused forward takes a call:

    on CUDA, of 16-bit data, or of float32 where the precision asked for lets products be tf32; for a result of the
    data's type or float32; with channels of 16 bytes by 16 bytes in each group and offset group, and an even number of
    features in each group; and, as far as sizes are known, fewer than 2**31 pixels in all images.
    """
    offset_groups, _ = groups_and_taps(offset, weight.shape[:2])
    vector = VECTOR_BYTES // x.dtype.itemsize
    pixels = math.prod(size for size in x.shape[:-1] if isinstance(size, int))
    return (
        platform == "cuda"
        and (x.dtype.itemsize == 2 or (x.dtype == jnp.float32 and _allows_tf32(spec.precision)))
        and spec.dtype in (x.dtype, jnp.float32)
        and x.shape[-1] // spec.feature_group_count % vector == 0
        and x.shape[-1] // offset_groups % vector == 0
        and weight.shape[-1] // spec.feature_group_count % 2 == 0
        and pixels < 2**31
    )


def forward(x, offset, weight, bias, mask, *, spec):
    batch, features = x.shape[:-3], weight.shape[-1]
    operands = [flat(x, 3), flat(offset, 3), _by_feature(weight), _float32_bias(bias, features)]
    if mask is not None:
        operands.append(flat(mask, 3))
    shape = (*operands[1].shape[:3], features)
    y = jax.ffi.ffi_call("dcn_fused_forward", _compat.result_aval(jax.typeof(operands[0]), shape, spec.dtype))(
        *_compat.vary_alike(operands),
        **attributes_of(offset, weight, spec),
        feature_group_count=spec.feature_group_count,
        tile_features=tile_features(math.prod(shape[:3]), features, spec.feature_group_count),
    )
    return y.reshape(*batch, *y.shape[1:])


def tile_features(pixels, features, groups) -> int:
    """How many features of a group a block computes, of TILE_PIXELS pixels.

    A block takes its pixels' samples once for all its features: so many that one block has all of the group's, where a
    tile can; but fewer where that leaves too few blocks to keep the GPU busy.
    """
    features //= groups

    def blocks(tile):
        return -(-pixels // TILE_PIXELS) * groups * -(-features // tile)

    tile = next((tile for tile in TILE_FEATURES if tile >= features), TILE_FEATURES[-1])
    while tile > TILE_FEATURES[0] and isinstance(pixels, int) and blocks(tile) < FEW_BLOCKS:
        tile //= 2
    return tile


def _by_feature(weight):
    """[kh, kw, Cin/groups, Cout] as [Cout, K, Cin/groups], in numbers that the matrix units take as they are."""
    if weight.dtype == jnp.float32:
        weight = lax.reduce_precision(weight, exponent_bits=8, mantissa_bits=10)
    features = weight.shape[-1]
    return jnp.transpose(weight, (3, 0, 1, 2)).reshape(features, -1, weight.shape[2])


def _float32_bias(bias, features):
    return jnp.zeros(features, jnp.float32) if bias is None else bias.astype(jnp.float32)


def _allows_tf32(precision) -> bool:
    """Whether XLA's own products of float32 may be tf32."""
    if precision == lax.DotAlgorithmPreset.TF32_TF32_F32:
        return True
    both = precision if isinstance(precision, tuple) else (precision,)
    return all(one in (None, lax.Precision.DEFAULT) for one in both)
