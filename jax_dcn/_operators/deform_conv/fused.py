"""The fused path, which CPUs have: implicit GEMMs, which multiply samples in caches and store no columns.

docs/memory.md says how results for NaN and infinite operands differ from those of the im2col path.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jax_dcn._operators.deform_conv.convolution import Convolution
from jax_dcn._operators.deform_conv.custom_calls import call, position_results, positions
from jax_dcn._operators.deform_conv.fused_plan import Fused
from jax_dcn._primitive.extension import ResultType


def forward(convolution: Convolution, choices: Fused) -> jax.Array:
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


def cotangents(
    convolution: Convolution, d_y: jax.Array, requested: Sequence[str], choices: Fused
) -> dict[str, jax.Array]:
    """The requested cotangents: of x, in its type, and of offset, mask and weight, in float32."""
    (x, _, weight, _, _), spec, _ = convolution
    samples, flat_weight = convolution.samples, _by_tap(weight)
    results: dict[str, ResultType] = {"x": (x.shape, x.dtype)} if "x" in requested else {}
    results |= position_results(samples, requested)
    if "weight" in requested:
        results["weight"] = (flat_weight.shape, jnp.float32)
    results["workspace"] = ((choices.workspace_size,), jnp.float32)
    arrays = call(
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
    out = dict(zip(results, arrays, strict=True))
    return {name: out[name].reshape(weight.shape) if name == "weight" else out[name] for name in requested}


def _by_tap(weight: jax.Array) -> jax.Array:
    """[kh, kw, Cin/groups, Cout] as [K, Cin/groups, Cout]."""
    kh, kw, *others = weight.shape
    return weight.reshape(kh * kw, *others)
