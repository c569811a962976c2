"""The operator by kernels: hands each planned computation to the executor of its path."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn._operators.deform_conv import fused_cpu, fused_cuda, im2col
from jax_dcn._operators.deform_conv.arguments import Spec
from jax_dcn._operators.deform_conv.convolution import Convolution
from jax_dcn._operators.deform_conv.plan import FusedCpu, FusedCuda, FusedCudaForward, Im2col
from jax_dcn._primitive.plan import ComputationPlan

Plans = Mapping[str, ComputationPlan]


def forward(
    plans: Plans,
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    *,
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
) -> jax.Array:
    """The rows and columns of the output from `origin` on, as many as `offset` has."""
    return _forward(Convolution(x, offset, weight, bias, mask, spec, origin), plans["forward"], im2col.VALUE_FILL)


def tangent(
    plans: Plans,
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    *,
    tangents: Mapping[str, jax.Array],
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
) -> jax.Array:
    """The tangent of the result, from the tangents of those operands that have one."""
    convolution = Convolution(x, offset, weight, None, mask, spec, origin)
    if "tangent" in plans:
        return im2col.tangent(convolution, tangents, plans["tangent"].choices)
    if "forward" in plans:
        operands: dict[str, Any] = dict(
            tangents
        )  # of one operand, in which the result is linear, and maybe of the bias
        return _forward(convolution._replace(**operands), plans["forward"], im2col.TANGENT_FILL)
    return jnp.broadcast_to(tangents["bias"], (*offset.shape[:-1], weight.shape[-1])).astype(spec.dtype)


def cotangent(
    plans: Plans,
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    *,
    ct: jax.Array,
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
) -> dict[str, jax.Array]:
    """The planned cotangents, in the dtype of the sums; that of x in the planned dtype."""
    convolution = Convolution(x, offset, weight, bias, mask, spec, origin)
    by_choices: dict[Any, list[str]] = {}
    for name, plan in plans.items():
        by_choices.setdefault(plan.choices, []).append(name)
    out: dict[str, jax.Array] = {}
    for choices, names in by_choices.items():
        match choices:
            case Im2col():
                out |= im2col.cotangents(convolution, ct, names, choices)
            case FusedCpu():
                out |= fused_cpu.cotangents(convolution, ct, names, choices)
            case FusedCuda():
                out |= fused_cuda.cotangents(convolution, ct, names, choices)
            case None:
                out["bias"] = ct.sum((0, 1, 2), dtype=offset.dtype)
    return out


def _forward(convolution: Convolution, plan: ComputationPlan, fill: float) -> jax.Array:
    match plan.choices:
        case FusedCpu() as choices:
            return fused_cpu.forward(convolution, choices)
        case FusedCudaForward() as choices:
            return fused_cuda.forward(convolution, choices)
        case choices:
            return im2col.forward(convolution, choices, fill)
