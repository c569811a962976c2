"""The fused path: implicit GEMMs, which multiply samples while they are in registers or caches and store no columns.

docs/memory.md says how results for NaN and infinite operands differ from those of the im2col path.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jax_dcn._operators.deform_conv.convolution import Convolution
from jax_dcn._operators.deform_conv.custom_calls import call, position_results, positions
from jax_dcn._operators.deform_conv.fused_plan import FusedCpu, FusedCudaForward, FusedCudaWeight
from jax_dcn._operators.deform_conv.geometry import groups_and_taps
from jax_dcn._primitive.extension import ResultType


def cpu_forward(convolution: Convolution, choices: FusedCpu) -> jax.Array:
    (x, offset, weight, _, _), spec, _ = convolution
    samples = convolution.samples
    y, _ = call(
        "dcn_cpu_fused_forward",
        *(x, *positions(samples), _by_tap(weight), convolution.float32_bias),
        samples=samples,
        results=[((*offset.shape[:3], weight.shape[-1]), spec.dtype), ((choices.workspace_size,), jnp.float32)],
        feature_group_count=spec.feature_group_count,
    )
    return y


def cpu_cotangents(
    convolution: Convolution, d_y: jax.Array, requested: Sequence[str], choices: FusedCpu
) -> dict[str, jax.Array]:
    """The requested cotangents: of x, in its type, and of offset, mask and weight, in float32."""
    (x, _, weight, _, _), spec, _ = convolution
    samples, flat_weight = convolution.samples, _by_tap(weight)
    results: dict[str, ResultType] = {"x": (x.shape, x.dtype)} if "x" in requested else {}
    results |= position_results(samples, requested)
    if "weight" in requested:
        results["weight"] = (flat_weight.shape, jnp.float32)
    results["workspace"] = ((choices.workspace_size,), jnp.float32)
    cotangents = call(
        "dcn_cpu_fused_cotangents",
        *(x, *positions(samples), flat_weight, d_y),
        samples=samples,
        results=list(results.values()),
        feature_group_count=spec.feature_group_count,
        workspace_requested=True,
        num_splits=choices.num_splits,
        num_planes=choices.num_planes,
        **{f"{name}_requested": name in results for name in ("x", "offset", "mask", "weight")},
    )
    out = dict(zip(results, cotangents, strict=True))
    return {name: out[name].reshape(weight.shape) if name == "weight" else out[name] for name in requested}


def cuda_forward(convolution: Convolution, choices: FusedCudaForward) -> jax.Array:
    (x, offset, weight, _, _), spec, _ = convolution
    samples = convolution.samples
    rounded = lax.reduce_precision(weight, 8, 10) if weight.dtype == jnp.float32 else weight  # to tf32
    by_feature = jnp.moveaxis(_by_tap(rounded), -1, 0)
    (y,) = call(
        "dcn_fused_forward",
        *(x, *positions(samples), by_feature, convolution.float32_bias),
        samples=samples,
        results=[((*offset.shape[:3], weight.shape[-1]), spec.dtype)],
        feature_group_count=spec.feature_group_count,
        tile_features=choices.tile_features,
        warps=choices.warps,
    )
    return y


def cuda_weight_cotangent(convolution: Convolution, d_y: jax.Array, choices: FusedCudaWeight) -> jax.Array:
    """The cotangent of weight, in float32: the sum of partial sums [num_splits, K, Cin/groups, Cout]."""
    (x, offset, weight, _, _), spec, _ = convolution
    samples, (_, taps) = convolution.samples, groups_and_taps(offset, weight.shape[:-2])
    (partial_sums,) = call(
        "dcn_fused_weight_cotangent",
        *(x, *positions(samples), d_y),
        samples=samples,
        results=[((choices.num_splits, taps, *weight.shape[-2:]), jnp.float32)],
        feature_group_count=spec.feature_group_count,
        tile_features=choices.tile_features,
        warps=choices.warps,
        has_one_sample=choices.has_one_sample,
    )
    return partial_sums.sum(0).reshape(weight.shape)


def _by_tap(weight: jax.Array) -> jax.Array:
    """[kh, kw, Cin/groups, Cout] as [K, Cin/groups, Cout]."""
    kh, kw, *others = weight.shape
    return weight.reshape(kh * kw, *others)
