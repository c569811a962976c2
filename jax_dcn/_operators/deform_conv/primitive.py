"""The operator as a JAX primitive, from the reference and the kernels."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax

from jax_dcn._operators.deform_conv import kernels, plan
from jax_dcn._operators.deform_conv.arguments import Operands, Spec, check_operands
from jax_dcn._operators.deform_conv.geometry import OUTPUT_AXES, groups_and_taps
from jax_dcn._operators.deform_conv.reference import reference
from jax_dcn._primitive.operator import Axes, Operator
from jax_dcn._primitive.partition import Shard
from jax_dcn._types import Shaped


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


def _operator(name: str, dims: int) -> Operator[Spec]:
    """The operator for images of this number of axes."""
    return Operator[Spec](
        name,
        operands=Operands,
        result=result,
        reference=reference,
        plan=plan.plan,
        forward=kernels.forward,
        tangent=kernels.tangent,
        cotangent=kernels.cotangent,
        flops=plan.flops,
        samples=plan.samples,
        axes=axes,
        keywords=keywords,
        chunk_lengths=plan.reference_chunk,
        shared={"weight": dims + 2, "bias": 1},
        linear=plan.LINEAR,
    )


deform_conv, deform_conv_of_volumes = _operator("deform_conv", 2), _operator("deform_conv3d", 3)
