"""The operator as a JAX primitive: its shapes, its sharding, its kernels and what they need.

The kernels are one custom call each for the result, for the cotangent of value, and for those of locations and weights.
All their arrays have one batch dimension, and the handlers are in lib/aggregation/handlers.cc.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn._operators.aggregation.arguments import Operands, check_operands
from jax_dcn._operators.aggregation.geometry import DCNv3Window, Spec, levels_of
from jax_dcn._operators.aggregation.reference import reference
from jax_dcn._operators.scatter import SAMPLE_RECORD_SIZE, Table, cells, plan_sums
from jax_dcn._primitive import extension
from jax_dcn._primitive.operator import Axes, Definition, Dimensions, Kernels, Operator
from jax_dcn._primitive.partition import Shard
from jax_dcn._primitive.parts import part_length
from jax_dcn._primitive.plan import ComputationPlan, Plans, Request
from jax_dcn._primitive.primitive import Primitive
from jax_dcn._primitive.target import Target
from jax_dcn._types import Shaped

Origin = tuple[ArrayLike, ArrayLike]  # the row and the column of the first query


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


def plan(request: Request, operands: Operands[Shaped]) -> Plans:
    """The plans by computation."""
    (value, locations, _), spec = operands, request.spec
    names = ("forward",) if request.step is None else request.step.arguments
    plans = {name: ComputationPlan(name, "kernel") for name in names}
    if "value" in names:
        samples = math.prod(locations.shape[1:-3]) * spec.taps
        rows = samples + sum(cells(level.height, level.width) for level in levels_of(spec, value))  # always enough
        table = Table(samples, rows, SAMPLE_RECORD_SIZE, locations.dtype)
        plans["value"] = plan_sums(request, "value", value, table, unit="head", total=value.shape[0] * value.shape[-2])
    return plans


def part_lengths(operands: Operands[Shaped], *, target: Target) -> dict[str, Any]:
    """The lengths of the parts of queries in which derivatives of the reference are evaluated."""
    value, locations, _ = operands
    row_bytes = math.prod(locations.shape[2:-1]) * value.shape[-1] * locations.dtype.itemsize
    return {"batch": 1, "rows": part_length(row_bytes)}


def flops(computation: str, operands: Operands[Shaped], spec: Spec) -> int:
    """Ten for each sampled channel: eight to interpolate or scatter it, two to multiply and add."""
    return 10 * math.prod(operands.locations.shape[:-1]) * operands.value.shape[-1]


def sample_bytes(operands: Operands[Shaped], spec: Spec) -> Any:
    """The bytes of the reference's samples."""
    locations = operands.locations
    return math.prod(locations.shape[:-1]) * operands.value.shape[-1] * locations.dtype.itemsize


def user_names(spec: Spec) -> dict[str, str]:
    """The operands as the arguments of `dcnv3` or of `multi_scale_deformable_attention`."""
    if isinstance(spec, DCNv3Window):
        return {"value": "x", "locations": "offset", "weights": "mask"}
    return {"locations": "sampling_locations", "weights": "attention_weights"}


def forward(plans: Plans, operands: Operands[jax.Array], *, spec: Spec, origin: Origin) -> jax.Array:
    """The result [n, queries, M, D] of the queries from `origin` on, as many as `locations` has."""
    value, locations, weights = operands
    results = [((*weights.shape[:-1], value.shape[-1]), value.dtype)]
    (out,) = _call("dcn_aggregate", value, locations, weights, _first(origin), spec=spec, results=results)
    return out


def cotangent(
    plans: Plans, operands: Operands[jax.Array], ct: jax.Array, *, spec: Spec, origin: Origin
) -> dict[str, jax.Array]:
    """The planned cotangents, in the dtype of the sums; that of value in the planned dtype."""
    value, locations, weights = operands
    first = _first(origin)
    out = {}
    if "value" in plans:
        sums = plans["value"].choices
        results = [(value.shape, sums.dtype), *sums.sorted_results]
        name = "dcn_aggregation_value_cotangent"
        out["value"], *_ = _call(name, locations, weights, first, ct, spec=spec, results=results)
    taps = {"locations": locations, "weights": weights}
    if requested := [name for name in taps if name in plans]:
        cotangents = _call(
            "dcn_aggregation_tap_cotangents",
            *(value, locations, weights, first, ct),
            spec=spec,
            results=[(taps[name].shape, taps[name].dtype) for name in requested],
            **{f"{name}_requested": name in requested for name in taps},
        )
        out |= dict(zip(requested, cotangents, strict=True))
    return out


def _first(origin: Origin) -> jax.Array:
    return jnp.stack([jnp.asarray(index, jnp.int32) for index in origin])


def _call(
    name: str, *operands: jax.Array, spec: Spec, results: Sequence[extension.ResultType], **attributes: bool
) -> Sequence[jax.Array]:
    return extension.call(name, *operands, results=results, **_attributes(spec), **attributes)


def _attributes(spec: Spec) -> dict[str, Any]:
    if not isinstance(spec, DCNv3Window):
        return {"window": False, "discrete": spec.discrete, "levels": spec.levels}
    return {
        "window": True,
        "kernel_size": spec.kernel_size,
        "strides": spec.strides,
        "padding": [low for low, _ in spec.padding],
        "kernel_dilation": spec.kernel_dilation,
        "offset_scale": spec.offset_scale,
        "remove_center": spec.remove_center,
    }


deform_aggregation = Primitive(
    Operator[Spec](
        "deform_aggregation",
        Definition(Operands, result, reference, shared={}, linear=("value", "weights")),
        Kernels(plan, forward, cotangent, flops),
        Dimensions(axes, keywords, part_lengths, sample_bytes),
        user_names,
    )
)
