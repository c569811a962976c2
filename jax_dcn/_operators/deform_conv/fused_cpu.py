"""The fused path for CPUs: samples are multiplied while they are in the caches, and the columns are never stored.

docs/memory.md says how results for NaN and infinite operands differ from those of the im2col path.
"""

from collections.abc import Sequence

import jax

from jax_dcn._operators.deform_conv import custom_calls
from jax_dcn._operators.deform_conv.convolution import Convolution
from jax_dcn._operators.deform_conv.plan import FusedCpu


def forward(convolution: Convolution, choices: FusedCpu) -> jax.Array:
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


def cotangents(
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
