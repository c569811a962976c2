"""Decides what the kernels of an aggregation and of its gradients need."""

import math
from dataclasses import dataclass
from typing import Any

from jax_dcn._operators.aggregation.arguments import Operands
from jax_dcn._operators.aggregation.geometry import Spec, Window, levels_of
from jax_dcn._primitive.chunks import balanced
from jax_dcn._primitive.operator import Request
from jax_dcn._primitive.plan import ComputationPlan
from jax_dcn._primitive.target import Target
from jax_dcn._types import Shaped

# The limit of the samples that are sorted at once on a GPU.
SORT_BYTES = 256 * 2**20
# The limit of the samples of a chunk in derivatives of the reference, which hold several arrays of this size.
REFERENCE_BYTES = 2**19


@dataclass(frozen=True)
class ValueCotangent:
    """How the cotangent of value is computed."""

    dtype: Any
    workspace_size: int  # in 32-bit elements
    tables: int  # the heads of an example whose samples are sorted at a time, on a GPU

    def __str__(self) -> str:
        return f"{self.tables} head{'' if self.tables == 1 else 's'} at a time" if self.tables else ""


def plan(request: Request, operands: Operands[Shaped]) -> dict[str, ComputationPlan]:
    """The plans by computation: one custom call for the forward, one for value, one for locations and weights."""
    names = ("forward",) if request.step is None else request.step.arguments
    plans = {name: ComputationPlan(name, "kernel") for name in names}
    if "value" in names:
        choices = _value_cotangent(request, operands.value, operands.locations)
        plans["value"] = ComputationPlan("value", "kernel", "", 4 * choices.workspace_size, choices)
    return plans


def _value_cotangent(request: Request, value: Shaped, locations: Shaped) -> ValueCotangent:
    """On a GPU, the samples of a head are sorted by location, as many heads at a time as SORT_BYTES have room for."""
    dtype = locations.dtype if "value" in request.all_reduced else value.dtype
    if request.target.platform != "cuda":
        return ValueCotangent(dtype, 0, 0)
    cells = sum((level.height + 1) * (level.width + 1) for level in levels_of(request.spec, value))
    # TableLayout of lib/aggregation/cuda_value.cu: each sample has a record of four numbers, an id and a row's start.
    words = locations.dtype.itemsize + 2
    elements = words * math.prod(locations.shape[1:-3]) * request.spec.taps + cells + 1
    tables = value.shape[0] * value.shape[-2]
    if not isinstance(elements, int) or not isinstance(tables, int):  # symbolic dimensions
        return ValueCotangent(dtype, elements, 1)
    tables = balanced(tables, SORT_BYTES // (4 * elements))
    return ValueCotangent(dtype, tables * elements, tables)


def reference_chunk(operands: Operands[Shaped], *, target: Target) -> dict[str, Any]:
    """The lengths of the chunks of queries in which derivatives of the reference are evaluated."""
    value, locations, _ = operands
    row_bytes = math.prod(locations.shape[2:-1]) * value.shape[-1] * locations.dtype.itemsize
    if not isinstance(row_bytes, int):  # a symbolic number of columns
        return {"batch": 1, "rows": 1}
    return {"batch": 1, "rows": max(REFERENCE_BYTES // max(row_bytes, 1), 1)}


def flops(computation: str, operands: Operands[Shaped], spec: Spec) -> int:
    """Ten for each sampled channel: eight to interpolate or scatter it, two to multiply and add."""
    return 10 * math.prod(operands.locations.shape[:-1]) * operands.value.shape[-1]


def samples(operands: Operands[Shaped], spec: Spec) -> Any:
    """The bytes of the reference's samples."""
    locations = operands.locations
    return math.prod(locations.shape[:-1]) * operands.value.shape[-1] * locations.dtype.itemsize


def words(spec: Spec) -> dict[str, str]:
    """The operands as the arguments of `dcnv3` or of `multi_scale_deformable_attention`."""
    if isinstance(spec, Window):
        return {"value": "x", "locations": "offset", "weights": "mask"}
    return {"locations": "sampling_locations", "weights": "attention_weights"}
