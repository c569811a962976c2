"""The memory that the operator needs besides operands and results."""

import math
from typing import Any

from jax_dcn._operators.aggregation.geometry import Spec, levels_of
from jax_dcn._primitive.target import Target
from jax_dcn._types import Shaped

# The limit of the samples that are sorted at once on a GPU.
SORT_BYTES = 256 * 2**20
# The limit of the samples of a chunk in derivatives of the reference, which hold several arrays of this size.
REFERENCE_BYTES = 2**19


def value_cotangent_elements(value: Shaped, locations: Shaped, spec: Spec, target: Target) -> Any:
    """The 32-bit elements that the kernel of value's cotangent needs, of operands with one batch dimension.

    On a GPU it sorts the samples of a head of an example by location: as many heads at once as SORT_BYTES have room
    for, but at least one.
    """
    if target.platform != "cuda":
        return 0
    cells = sum((level.height + 1) * (level.width + 1) for level in levels_of(spec, value))
    # As TableLayout of lib/cuda/aggregation_value.cu: a sample has a record of four numbers, an id and a row's start.
    words = locations.dtype.itemsize + 2
    elements = words * math.prod(locations.shape[1:-3]) * spec.taps + cells + 1
    tables = value.shape[0] * value.shape[-2]
    if not isinstance(elements, int) or not isinstance(tables, int):  # symbolic dimensions
        return elements
    return min(tables, max(SORT_BYTES // (4 * elements), 1)) * elements


def reference_chunk(value: Shaped, locations: Shaped) -> dict[str, Any]:
    """The lengths of the chunks in which derivatives of the reference are evaluated."""
    row_bytes = math.prod(locations.shape[2:-1]) * value.shape[-1] * locations.dtype.itemsize
    if not isinstance(row_bytes, int):  # a symbolic number of columns
        return {"batch": 1, "rows": 1}
    return {"batch": 1, "rows": max(REFERENCE_BYTES // max(row_bytes, 1), 1)}
