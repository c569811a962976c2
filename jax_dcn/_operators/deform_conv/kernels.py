"""The operator by kernels: hands each planned computation to the executor of its path."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn._operators.deform_conv import fused_cpu, fused_cuda, im2col
from jax_dcn._operators.deform_conv.arguments import Operands, Spec
from jax_dcn._operators.deform_conv.convolution import Convolution
from jax_dcn._operators.deform_conv.plan import FusedCpu, FusedCuda, FusedCudaForward, Im2col
from jax_dcn._primitive.plan import ComputationPlan

Arrays = Mapping[str, jax.Array]
Plans = Mapping[str, ComputationPlan]
Origin = tuple[ArrayLike, ...]


def forward(plans: Plans, operands: Operands[jax.Array], *, spec: Spec, origin: Origin) -> jax.Array:
    """The part of the output from `origin` on that `offset` has."""
    return _forward(Convolution(operands, spec, origin), plans["forward"], im2col.VALUE_FILL)


def tangent(plans: Plans, operands: Operands[jax.Array], tangents: Arrays, *, spec: Spec, origin: Origin) -> jax.Array:
    """The tangent of the result, from the tangents of those operands that have one."""
    operands = operands._replace(bias=None)
    if "tangent" in plans:
        return im2col.tangent(Convolution(operands, spec, origin), tangents, plans["tangent"].choices)
    if "forward" in plans:
        return _forward(Convolution(operands._replace(**tangents), spec, origin), plans["forward"], im2col.TANGENT_FILL)
    shape = (*operands.offset.shape[:-1], operands.weight.shape[-1])
    return jnp.broadcast_to(tangents["bias"], shape).astype(spec.dtype)


def cotangent(
    plans: Plans, operands: Operands[jax.Array], ct: jax.Array, *, spec: Spec, origin: Origin
) -> dict[str, jax.Array]:
    """The planned cotangents, in the dtype of the sums; that of x in the planned dtype."""
    convolution = Convolution(operands, spec, origin)
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
            case None if names == ["bias"]:
                out["bias"] = ct.sum(range(ct.ndim - 1), dtype=operands.offset.dtype)
            case _:
                raise TypeError(f"no executor takes {choices} for {names}")
    return out


def _forward(convolution: Convolution, plan: ComputationPlan, fill: float) -> jax.Array:
    match plan.choices:
        case FusedCpu() as choices:
            return fused_cpu.forward(convolution, choices)
        case FusedCudaForward() as choices:
            return fused_cuda.forward(convolution, choices)
        case Im2col() as choices:
            return im2col.forward(convolution, choices, fill)
    raise TypeError(f"no executor takes {plan.choices}")
