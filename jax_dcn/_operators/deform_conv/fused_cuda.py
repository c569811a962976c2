"""The fused path, for CUDA: implicit GEMMs, which multiply the columns as they gather them and never store them.

It differs from the im2col path in what is not finite: an infinite mask is NaN in `forward` where a bilinear corner has
weight 0, and an infinite cotangent of the result may be NaN in those of offset and mask.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jax_dcn._operators.deform_conv import custom_calls
from jax_dcn._operators.deform_conv.arguments import Spec
from jax_dcn._operators.deform_conv.convolution import Convolution
from jax_dcn._operators.deform_conv.plan import (
    FusedCuda,
    FusedCudaForward,
    FusedCudaInput,
    FusedCudaPositions,
    FusedCudaWeight,
)


def forward(convolution: Convolution, choices: FusedCudaForward) -> jax.Array:
    (x, _, weight, _, _), spec, _ = convolution
    return custom_calls.fused_forward(
        x,
        convolution.samples,
        _by_feature(weight),
        convolution.float32_bias,
        feature_group_count=spec.feature_group_count,
        tile_features=choices.tile_features,
        dtype=spec.dtype,
    )


def cotangents(
    convolution: Convolution, d_y: jax.Array, requested: Sequence[str], choices: FusedCuda
) -> dict[str, jax.Array]:
    """The cotangents that one kernel computes: that of x, that of weight, or those of offset and mask.

    They have the type of sums, or for x that of the operand.
    """
    (x, _, weight, _, _), spec, _ = convolution
    samples, groups = convolution.samples, spec.feature_group_count
    match choices:
        case FusedCudaInput(images):
            d_x = custom_calls.fused_input_cotangent(
                samples,
                _by_channel(weight, spec),
                d_y,
                feature_group_count=groups,
                image_size=x.shape[1:3],
                images_at_once=images,
            )
            return {"x": d_x}
        case FusedCudaWeight(num_splits):
            partial_sums = custom_calls.fused_weight_cotangent(
                x, samples, d_y, feature_group_count=groups, num_splits=num_splits
            )
            return {"weight": partial_sums.sum(0).reshape(weight.shape)}
        case FusedCudaPositions(block_taps):
            return custom_calls.fused_offset_cotangent(
                x,
                samples,
                _by_channel(weight, spec),
                d_y,
                feature_group_count=groups,
                block_taps=block_taps,
                requested=requested,
            )
    raise TypeError(f"no fused kernel takes {choices}")


def _by_feature(weight: jax.Array) -> jax.Array:
    """[kh, kw, Cin/groups, Cout] as [Cout, K, Cin/groups], float32 rounded to tf32."""
    kh, kw, channels, features = weight.shape
    return jnp.transpose(_as_tf32(weight), (3, 0, 1, 2)).reshape(features, kh * kw, channels)


def _by_channel(weight: jax.Array, spec: Spec) -> jax.Array:
    """[kh, kw, Cin/groups, Cout] as [Cin, K, Cout/groups], float32 rounded to tf32."""
    kh, kw, channels, features = weight.shape
    groups = spec.feature_group_count
    weight = _as_tf32(weight).reshape(kh * kw, channels, groups, features // groups)
    return jnp.transpose(weight, (2, 1, 0, 3)).reshape(groups * channels, kh * kw, features // groups)


def _as_tf32(array: jax.Array) -> jax.Array:
    return lax.reduce_precision(array, 8, 10) if array.dtype == jnp.float32 else array
