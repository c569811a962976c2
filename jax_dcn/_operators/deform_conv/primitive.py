"""The operator as a JAX primitive: its axes, and its lowering, which hands each planned computation to an executor."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn._operators.deform_conv import fused, im2col, im2col_plan, plan
from jax_dcn._operators.deform_conv.arguments import Operands, Spec, check_operands
from jax_dcn._operators.deform_conv.convolution import Convolution
from jax_dcn._operators.deform_conv.fused_plan import Fused
from jax_dcn._operators.deform_conv.geometry import OUTPUT_AXES, groups_and_taps
from jax_dcn._operators.deform_conv.im2col_plan import Im2col
from jax_dcn._operators.deform_conv.reference import reference
from jax_dcn._primitive.chain import Arrays
from jax_dcn._primitive.operator import Axes, Definition, Dimensions, Kernels, Operator
from jax_dcn._primitive.partition import Shard
from jax_dcn._primitive.plan import ComputationPlan, Plans, by_choices
from jax_dcn._primitive.primitive import Primitive
from jax_dcn._types import Shaped

Origin = tuple[ArrayLike, ...]


def result(operands: Operands[Shaped], spec: Spec) -> jax.ShapeDtypeStruct:
    """The shape and type of the result; raises ValueError where the operands do not fit."""
    check_operands(operands, spec)
    return jax.ShapeDtypeStruct((*operands.offset.shape[:-1], operands.weight.shape[-1]), spec.dtype)


def axes(operands: Operands[Shaped], spec: Spec) -> Axes:
    """The output's axes and its features may be sharded; in a grouped convolution, only whole groups of features.

    There the input channels are sharded with the features, and so are the offset groups if there are several.
    """
    _, offset, weight, _, _ = operands
    (offset_groups, _), groups = groups_and_taps(offset, weight.shape[:-2]), spec.feature_group_count
    grouped = "groups" if groups > 1 else None
    features = grouped or "features"
    places = OUTPUT_AXES[spec.dims]
    positions = (*places, grouped if offset_groups > 1 else None)
    return Axes(
        operands={
            "x": (*[None] * spec.dims, grouped),
            "offset": positions,
            "weight": (*[None] * spec.dims, None, features),
            "bias": (features,),
            "mask": positions,
        },
        result=(*places, features),
        sizes={
            **dict(zip(places, offset.shape[-spec.dims - 1 : -1], strict=True)),
            "features": weight.shape[-1],
            "groups": groups if offset_groups == 1 else math.gcd(groups, offset_groups),
        },
    )


def keywords(spec: Spec, shards: Mapping[str, Shard]) -> dict[str, Any]:
    """The keywords of the reference and of the kernels on a device that has these shards."""
    if "groups" in shards:
        spec = dataclasses.replace(spec, feature_group_count=spec.feature_group_count // shards["groups"].num_shards)
    origin = tuple(shards[name].start if name in shards else 0 for name in OUTPUT_AXES[spec.dims])
    return {"spec": spec, "origin": origin}


def _forward_by_kernels(plans: Plans, operands: Operands[jax.Array], *, spec: Spec, origin: Origin) -> jax.Array:
    """The shard of the output from `origin` on that `offset` has."""
    return _forward(Convolution(operands, spec, origin), plans["forward"], im2col.VALUE_FILL)


def _tangent_by_kernels(
    plans: Plans, operands: Operands[jax.Array], tangents: Arrays, *, spec: Spec, origin: Origin
) -> jax.Array:
    """The tangent of the result, from the tangents of those operands that have one."""
    operands = operands._replace(bias=None)
    if "tangent" in plans:
        return im2col.tangent(Convolution(operands, spec, origin), tangents, plans["tangent"].choices)
    if "forward" in plans:
        return _forward(Convolution(operands._replace(**tangents), spec, origin), plans["forward"], im2col.TANGENT_FILL)
    shape = (*operands.offset.shape[:-1], operands.weight.shape[-1])
    return jnp.broadcast_to(tangents["bias"], shape).astype(spec.dtype)


def _cotangent_by_kernels(
    plans: Plans, operands: Operands[jax.Array], ct: jax.Array, *, spec: Spec, origin: Origin
) -> Arrays:
    """The planned cotangents, in the dtype of the sums; that of x in the planned dtype."""
    convolution = Convolution(operands, spec, origin)
    out: Arrays = {}
    for choices, names in by_choices(plans).items():
        match choices:
            case Im2col():
                out |= im2col.cotangents(convolution, ct, names, choices)
            case Fused():
                out |= fused.cotangents(convolution, ct, names, choices)
            case None if names == ["bias"]:
                out["bias"] = ct.sum(range(ct.ndim - 1), dtype=operands.offset.dtype)
            case _:
                raise TypeError(f"no executor takes {choices} for {names}")
    return out


def _forward(convolution: Convolution, planned: ComputationPlan, fill: float) -> jax.Array:
    match planned.choices:
        case Fused() as choices:
            return fused.forward(convolution, choices)
        case Im2col() as choices:
            return im2col.forward(convolution, choices, fill)
    raise TypeError(f"no executor takes {planned.choices}")


_kernels = Kernels(plan.plan, _forward_by_kernels, _cotangent_by_kernels, plan.flops, _tangent_by_kernels)
_dimensions = Dimensions(axes, keywords, im2col_plan.part_lengths, plan.sample_bytes)


def _primitive(name: str, dims: int) -> Primitive[Spec]:
    """The primitive for images of this number of axes."""
    definition = Definition(Operands, result, reference, shared={"weight": dims + 2, "bias": 1}, linear=plan.LINEAR)
    return Primitive(Operator[Spec](name, definition, _kernels, _dimensions))


deform_conv, deform_conv_of_volumes = _primitive("deform_conv", 2), _primitive("deform_conv3d", 3)
