"""The operator as a JAX primitive, from the reference and the kernels."""

from collections.abc import Mapping
from typing import Any

import jax

from jax_dcn._operators.aggregation import kernels, plan
from jax_dcn._operators.aggregation.arguments import Operands, check_operands
from jax_dcn._operators.aggregation.geometry import Spec
from jax_dcn._operators.aggregation.reference import reference
from jax_dcn._primitive.operator import Axes, Operator
from jax_dcn._primitive.partition import Shard
from jax_dcn._types import Shaped


def result(operands: Operands[Shaped], spec: Spec) -> jax.ShapeDtypeStruct:
    """The shape and type of the result; raises ValueError where the operands do not fit."""
    check_operands(operands, spec)
    value, _, weights = operands
    return jax.ShapeDtypeStruct((*weights.shape[:-1], value.shape[-1]), value.dtype)


def axes(operands: Operands[Shaped], spec: Spec) -> Axes:
    """The queries and the heads may be sharded. The value's pixels may not: a tap may read any."""
    queries = ("rows", "columns")[: spec.image_dims]
    sizes = dict(zip(queries, operands.locations.shape[-spec.image_dims - 3 :], strict=False))
    return Axes(
        operands={
            "value": (*[None] * spec.image_dims, "heads", None),
            "locations": (*queries, "heads", None, None),
            "weights": (*queries, "heads", None),
        },
        result=(*queries, "heads", None),
        sizes={**sizes, "heads": operands.value.shape[-2]},
    )


def keywords(spec: Spec, shards: Mapping[str, Shard]) -> dict[str, Any]:
    """The keywords of the reference and of the kernels on a device that has these shards."""
    return {"spec": spec, "origin": tuple(shards[name].start if name in shards else 0 for name in ("rows", "columns"))}


deform_aggregation = Operator[Spec](
    "deform_aggregation",
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
    linear=("value", "weights"),
    words=plan.words,
)
