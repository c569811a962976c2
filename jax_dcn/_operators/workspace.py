"""The workspace of operators that sample at locations: the aggregation and the sampling."""

from dataclasses import dataclass
from typing import Any

from jax_dcn._primitive.parts import balanced
from jax_dcn._primitive.plan import ComputationPlan, Request, counted
from jax_dcn._types import Shaped

# The most that the samples of an aggregation or of a sampling that are sorted at a time on a GPU may take.
SAMPLING_SORT_BYTES = 256 * 2**20
# The limit of the samples of a part in derivatives of the reference, which hold several arrays of this size.
REFERENCE_BYTES = 2**19


@dataclass(frozen=True)
class SortedSums:
    """How the cotangent of a sampled operand is summed: on a GPU by samples that are sorted by the pixels they read."""

    dtype: Any
    workspace_size: int  # in 32-bit elements
    count: int  # the images or heads whose samples are sorted at a time, on a GPU
    unit: str  # "image" or "head"

    def __str__(self) -> str:
        return f"{counted(self.count, self.unit)} at a time" if self.count else ""


def plan_sums(
    request: Request, name: str, sampled: Shaped, locations: Shaped, *, unit: str, total: Any, sort_size: Any
) -> ComputationPlan:
    """The plan of the cotangent of the operand `name`.

    On a GPU, the samples of as many of the `total` images or heads are sorted at a time as SAMPLING_SORT_BYTES has room
    for. Those of each take `sort_size` 32-bit elements.
    """
    dtype = locations.dtype if name in request.all_reduced else sampled.dtype
    if request.target.platform != "cuda":
        sums = SortedSums(dtype, 0, 0, unit)
    elif not isinstance(sort_size, int) or not isinstance(total, int):  # symbolic dimensions
        sums = SortedSums(dtype, sort_size, 1, unit)
    else:
        count = balanced(total, SAMPLING_SORT_BYTES // (4 * sort_size))
        sums = SortedSums(dtype, count * sort_size, count, unit)
    return ComputationPlan(name, "kernel", "", 4 * sums.workspace_size, sums)


def part_length(sample_bytes: Any) -> int:
    """How many queries or points fit in REFERENCE_BYTES, whose samples have `sample_bytes` each; at least one."""
    if not isinstance(sample_bytes, int):  # a symbolic dimension
        return 1
    return max(REFERENCE_BYTES // max(sample_bytes, 1), 1)
