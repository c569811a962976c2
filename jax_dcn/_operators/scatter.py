"""What a GPU sorts to compute the cotangent of an operand that is sampled: the shapes, and how many tables at a time.

The samples of an image, or of one of its groups or heads, are a table, whose entries are sorted by row: by the pixels
that they read, or by the cells between pixels. Then each pixel gathers. The kernels are in lib/scatter/.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp

from jax_dcn._primitive.extension import ResultType
from jax_dcn._primitive.parts import balanced
from jax_dcn._primitive.plan import ComputationPlan, Request, counted
from jax_dcn._types import Shaped

# The most that the tables that are sorted at a time may take, if they are several: those of a convolution of images,
# and those of an aggregation or of a sampling.
CONVOLUTION_SORT_BYTES, SORT_BYTES = 64 * 2**20, 256 * 2**20
# Of SortedSample and SortedTap in lib/scatter/tables.h.
SAMPLE_RECORD_SIZE, TAP_RECORD_SIZE = 4, 2


class Table(NamedTuple):
    """The size of a table. The record of an entry has `record_size` numbers, as wide as those of `dtype`, the sums."""

    entries: Any
    rows: Any
    record_size: int
    dtype: Any

    def results(self, tables: Sequence[Any]) -> list[ResultType]:
        """What a sort of these tables returns: the records, the starts of the rows, and a workspace."""
        integers = jnp.dtype(f"int{8 * self.dtype.itemsize}")
        shapes = (
            ((self.entries, self.record_size), integers),
            ((self.rows + 1,), jnp.int32),
            ((self.entries,), jnp.int32),
        )
        return [((*tables, *shape), dtype) for shape, dtype in shapes]

    @property
    def num_bytes(self) -> Any:
        """What a table takes while it is sorted."""
        return sum(math.prod(shape) * jnp.dtype(dtype).itemsize for shape, dtype in self.results(()))


def cells(height: Any, width: Any) -> Any:
    """The number of squares between four neighbouring pixels of an image, by which samples are sorted."""
    return (height + 1) * (width + 1)


@dataclass(frozen=True)
class Sums:
    """How the cotangent of a sampled operand is summed."""

    dtype: Any  # of the result
    count: int  # the images or heads whose samples are sorted at a time, on a GPU
    unit: str  # "image" or "head"
    table: Table  # of each

    @property
    def sorted_results(self) -> list[ResultType]:
        """The results of the custom call besides the sums."""
        return self.table.results((self.count,)) if self.count else []

    def __str__(self) -> str:
        return f"{counted(self.count, self.unit)} at a time" if self.count else ""


def plan_sums(request: Request, name: str, sampled: Shaped, table: Table, *, unit: str, total: Any) -> ComputationPlan:
    """The plan of the cotangent of the operand `name`: a GPU sorts as many of `total` tables at a time as fit."""
    dtype = table.dtype if name in request.all_reduced else sampled.dtype
    if request.target.platform != "cuda":
        return ComputationPlan(name, "kernel", choices=Sums(dtype, 0, unit, table))
    is_known = isinstance(table.num_bytes, int)  # no symbolic dimensions
    count = balanced(total, SORT_BYTES // table.num_bytes) if is_known else 1
    return ComputationPlan(name, "kernel", "", count * table.num_bytes, Sums(dtype, count, unit, table))
