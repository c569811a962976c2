"""The fused path: implicit GEMMs, which multiply samples while they are in registers or caches and store no columns.

docs/memory.md says how results for NaN and infinite operands differ from those of the im2col path.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jax_dcn._operators.deform_conv import custom_calls
from jax_dcn._operators.deform_conv.convolution import Convolution
from jax_dcn._operators.deform_conv.fused_plan import FusedCpu, FusedCudaForward, FusedCudaWeight


def cpu_forward(convolution: Convolution, choices: FusedCpu) -> jax.Array:
    (x, _, weight, _, _), spec, _ = convolution
    return custom_calls.cpu_fused_forward(
        x,
        convolution.samples,
        weight,
        convolution.float32_bias,
        feature_group_count=spec.feature_group_count,
        workspace_size=choices.workspace_size,
        dtype=spec.dtype,
    )


def cpu_cotangents(
    convolution: Convolution, d_y: jax.Array, requested: Sequence[str], choices: FusedCpu
) -> dict[str, jax.Array]:
    """The requested cotangents, in the type of sums or for x of the operand."""
    (x, _, weight, _, _), spec, _ = convolution
    return custom_calls.cpu_fused_cotangents(
        x,
        convolution.samples,
        weight,
        d_y,
        feature_group_count=spec.feature_group_count,
        division=choices,
        requested=requested,
    )


def cuda_forward(convolution: Convolution, choices: FusedCudaForward) -> jax.Array:
    (x, _, weight, _, _), spec, _ = convolution
    return custom_calls.fused_forward(
        x,
        convolution.samples,
        _by_feature(weight),
        convolution.float32_bias,
        feature_group_count=spec.feature_group_count,
        tile=choices,
        dtype=spec.dtype,
    )


def cuda_weight_cotangent(convolution: Convolution, d_y: jax.Array, choices: FusedCudaWeight) -> jax.Array:
    """The cotangent of weight, in float32."""
    (x, _, weight, _, _), spec, _ = convolution
    partial_sums = custom_calls.fused_weight_cotangent(
        x, convolution.samples, d_y, feature_group_count=spec.feature_group_count, tile=choices
    )
    return partial_sums.sum(0).reshape(weight.shape)


def _by_feature(weight: jax.Array) -> jax.Array:
    """[kh, kw, Cin/groups, Cout] as [Cout, K, Cin/groups], float32 rounded to tf32."""
    kh, kw, channels, features = weight.shape
    rounded = lax.reduce_precision(weight, 8, 10) if weight.dtype == jnp.float32 else weight
    return jnp.transpose(rounded, (3, 0, 1, 2)).reshape(features, kh * kw, channels)
