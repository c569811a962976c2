"""For which GPUs, and from which sizes on, a fused CUDA kernel is used.

The row of 9.0 was measured on an H200. The model of commit a4229b8 estimated the others: it counted instructions and
bytes, and assumed the rest. A measurement replaces a row.
"""

import math
from typing import NamedTuple


class FusedFrom(NamedTuple):
    """The smallest sizes for which a fused CUDA kernel is used."""

    channels: float = math.inf  # that share one feature group and one offset group
    pixels: float = math.inf  # of the result, all images together


class Gpu(NamedTuple):
    """What is chosen for a GPU."""

    resident_blocks: int  # per SM, which tiles are chosen for: 2 where an SM has 164 KiB of shared memory or more
    small_k: int  # the K dimension of the product up to which the forward of at most SMALL_PIXELS pixels is fused
    why: str  # the table decides so
    forward: FusedFrom = FusedFrom()
    weight: FusedFrom = FusedFrom()


SMALL_PIXELS = 8_000
SMALL = "estimated: launches decide for so few pixels and channels, and the fused path has fewer"
_A100 = "estimated: a fused forward pays for many channels and pixels"
# The fused forward was 5 % faster in one case of 18, the gradient of the weight alone by 10 and 16 % in two.
_H200 = "on an H200, the only GPU of 9.0 or later that was tried, the fused kernels were slower in nearly all cases"
_SLOW_MEMORY = "estimated: the GPU's memory is slow, so that a fused kernel pays unless channels or pixels are few"
# By compute capability; a capability that is missing has the row of the next smaller one.
GPUS = {
    80: Gpu(2, 128, _A100, forward=FusedFrom(64, 16_384)),
    86: Gpu(1, 2_304, _SLOW_MEMORY, forward=FusedFrom(16, 2_000), weight=FusedFrom(16, 2_000)),
    90: Gpu(2, -1, _H200),
    120: Gpu(1, 2_304, _SLOW_MEMORY, forward=FusedFrom(16, 2_000), weight=FusedFrom(16, 2_000)),
}
# Tiles for a GPU that is not known, as of exported programs, must fit every GPU.
UNKNOWN_GPU = Gpu(1, -1, "the GPU is not known")
UNKNOWN_SMS = 128


def gpu_of(compute_capability: int | None) -> Gpu:
    """The row of a compute capability, which is 90 for 9.0."""
    known = [gpu for capability, gpu in GPUS.items() if capability <= (compute_capability or 0)]
    return known[-1] if known else UNKNOWN_GPU
