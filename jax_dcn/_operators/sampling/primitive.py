"""The operator as a JAX primitive, from the reference and the kernels."""

from collections.abc import Mapping
from typing import Any

import jax

from jax_dcn._operators.sampling import kernels, plan
from jax_dcn._operators.sampling.arguments import Operands, check_operands
from jax_dcn._operators.sampling.geometry import Spec
from jax_dcn._operators.sampling.reference import reference
from jax_dcn._primitive.operator import Axes, Operator
from jax_dcn._primitive.partition import Shard
from jax_dcn._types import Shaped


def result(operands: Operands[Shaped], spec: Spec) -> jax.ShapeDtypeStruct:
    """The shape and type of the result; raises ValueError where the operands do not fit."""
    check_operands(operands, spec)
    x, locations = operands
    return jax.ShapeDtypeStruct((*locations.shape[:-2], spec.points(locations), x.shape[-1]), x.dtype)


def axes(operands: Operands[Shaped], spec: Spec) -> Axes:
    """The points and the channels may be sharded. The pixels may not: a sample may read any."""
    return Axes(
        operands={
            "x": (*[None] * spec.dims, "channels"),
            "locations": (None, "points") if spec.planar else ("points", None),
        },
        result=("points", "channels"),
        sizes={
            "points": spec.points(operands.locations),
            "channels": operands.x.shape[-1],
        },
    )


def keywords(spec: Spec, shards: Mapping[str, Shard]) -> dict[str, Any]:
    """The keywords of the reference and of the kernels: the same on every device."""
    return {"spec": spec}


deform_sampling = Operator[Spec](
    "deform_sampling",
    operands=Operands,
    result=result,
    reference=reference,
    plan=plan.plan,
    forward=kernels.forward,
    tangent=None,
    cotangent=kernels.cotangent,
    flops=plan.flops,
    samples=plan.samples,
    axes=axes,
    keywords=keywords,
    chunk_lengths=plan.reference_chunk,
    shared={},
    linear=("x",),
    words=plan.words,
)
