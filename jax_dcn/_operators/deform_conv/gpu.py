"""What a GPU does per clock, and what the kernels need there."""

from typing import NamedTuple

NARROW = 64  # channels of a channel segment, below which a K slice or a tile of the fused kernels has several taps


class Gpu(NamedTuple):
    """Clocks are those of an SM, for issuing instructions or for the L1 cache, whichever takes longer."""

    architecture: str
    name: str
    sms: int
    clock: float  # Hz
    multiply_adds: float  # of `mma.sync` per clock and SM, in 16 bits
    product_multiply_adds: float  # of XLA's products per clock and SM, in 16 bits
    memory: float  # bytes per second
    l2_bytes: int  # its size
    l2_bytes_per_clock: int
    weight_blocks: int  # resident thread blocks per SM of the weight's cotangent
    # By computation, columns of the block tile, and whether channel segments are narrow.
    k_step_clocks: dict[tuple[str, int, bool], float]
    offset_tap_clocks: float  # after the products of each tap of the offset's cotangent, in addition
    sort_clocks: float  # per sorted entry
    # Of the plain kernels, by computation and channels of an offset group, per 128 bytes of columns.
    column_clocks: dict[tuple[str, int], float]
