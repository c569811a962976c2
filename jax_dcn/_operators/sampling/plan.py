"""Says what the kernels of a sampling and of its gradients need."""

import math
from dataclasses import dataclass
from typing import Any

from jax_dcn._operators.sampling.arguments import Operands
from jax_dcn._operators.sampling.geometry import Spec
from jax_dcn._primitive.chunks import balanced
from jax_dcn._primitive.operator import Request
from jax_dcn._primitive.plan import ComputationPlan
from jax_dcn._primitive.target import Target
from jax_dcn._types import Shaped

# The limit of what is sorted at once on a GPU.
SORT_BYTES = 256 * 2**20
# The limit of the samples of a chunk in derivatives of the reference, which hold several arrays of this size.
REFERENCE_BYTES = 2**19


@dataclass(frozen=True)
class XCotangent:
    """How the cotangent of x is computed."""

    dtype: Any
    workspace_size: int  # in 32-bit elements
    images: int  # whose samples are sorted at a time, on a GPU

    def __str__(self) -> str:
        return f"{self.images} image{'' if self.images == 1 else 's'} at a time" if self.images else ""


def plan(request: Request, operands: Operands[Shaped]) -> dict[str, ComputationPlan]:
    """The plans by computation: one custom call each."""
    names = ("forward",) if request.step is None else request.step.arguments
    plans = {name: ComputationPlan(name, "kernel") for name in names}
    if "x" in names:
        choices = _x_cotangent(request, operands)
        plans["x"] = ComputationPlan("x", "kernel", "", 4 * choices.workspace_size, choices)
    if "locations" in names and request.spec.taps == 1:
        plans["locations"] = ComputationPlan("locations", "xla", "it is zero")
    return plans


def _x_cotangent(request: Request, operands: Operands[Shaped]) -> XCotangent:
    """On a GPU, the pixels that samples read are sorted, of as many images at a time as SORT_BYTES have room for."""
    x, locations = operands
    dtype = locations.dtype if "x" in request.all_reduced else x.dtype
    if request.target.platform != "cuda":
        return XCotangent(dtype, 0, 0)
    # TableWords of lib/sampling/cuda_x.cu: each pixel of a sample has a record of a point and a weight, and an id.
    entries = request.spec.points(locations) * request.spec.sorted_taps
    words = entries * (locations.dtype.itemsize // 2 + 1) + math.prod(x.shape[1:-1]) + 1
    if not isinstance(words, int) or not isinstance(x.shape[0], int):  # symbolic dimensions
        return XCotangent(dtype, words, 1)
    images = balanced(x.shape[0], SORT_BYTES // (4 * words))
    return XCotangent(dtype, images * words, images)


def reference_chunk(operands: Operands[Shaped], *, target: Target) -> dict[str, Any]:
    """The lengths of the chunks of points in which derivatives of the reference are evaluated."""
    point_bytes = operands.x.shape[-1] * operands.locations.dtype.itemsize
    if not isinstance(point_bytes, int):
        return {"batch": 1, "points": 1}
    return {"batch": 1, "points": max(REFERENCE_BYTES // max(point_bytes, 1), 1)}


def flops(computation: str, operands: Operands[Shaped], spec: Spec) -> int:
    """A multiply-add for each channel of each pixel that a sample reads."""
    if computation == "locations" and spec.taps == 1:
        return 0
    return 2 * spec.taps**spec.dims * _samples(operands)


def samples(operands: Operands[Shaped], spec: Spec) -> int:
    """The bytes of the reference's samples."""
    return _samples(operands) * operands.locations.dtype.itemsize


def words(spec: Spec) -> dict[str, str]:
    """The operands as the arguments of `map_coordinates` or of `grid_sample`."""
    return {"x": "input", "locations": "coordinates"} if spec.planar else {"locations": "grid"}


def _samples(operands: Operands[Shaped]) -> int:
    """The number of sampled channels. Locations have as many coordinates for a point as an image has axes."""
    x, locations = operands
    axes = len(x.shape) - len(locations.shape) + 1
    return math.prod(locations.shape) // axes * x.shape[-1]
