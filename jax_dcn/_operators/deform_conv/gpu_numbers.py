"""Rates of GPUs and clocks of the convolution's kernels. `python -m benchmarks.machine_code` writes the numbers.

benchmarks/readers/devices.py has the sources of the rates, and says which are assumed.
"""

from typing import NamedTuple


class Gpu(NamedTuple):
    architecture: str
    sms: int
    clock: float  # Hz
    multiply_adds: float  # of `mma.sync` per clock and SM, in 16 bits
    product_multiply_adds: float  # of XLA's products per clock and SM, in 16 bits
    memory: float  # bytes per second
    l2_bytes: int  # its size
    l2_bytes_per_clock: int
    weight_blocks: int  # resident thread blocks per SM of the weight's cotangent
    fused_clocks: float  # of the fused kernels, relative to sm_80
    im2col_clocks: float  # of the other kernels, likewise


GPUS = {
    80: Gpu("sm_80", 108, 1.41e09, 1_024, 1_024, 2.039e12, 40_000_000, 5_120, 2, 1, 1),  # A100
    86: Gpu("sm_86", 82, 1.695e09, 256, 256, 9.36e11, 6_000_000, 3_280, 1, 1.11, 1),  # RTX 3090
    89: Gpu("sm_89", 128, 2.52e09, 256, 256, 1.008e12, 72_000_000, 5_120, 1, 1.11, 1),  # RTX 4090
    90: Gpu("sm_90", 132, 1.755e09, 1269.76, 2_048, 4.8e12, 50_000_000, 5_120, 2, 1, 1.04),  # H200
    100: Gpu("sm_100", 148, 1.85e09, 1_024, 4_096, 8e12, 126_000_000, 5_920, 2, 1, 1.04),  # B200
    120: Gpu("sm_120", 170, 2.407e09, 256, 256, 1.792e12, 96_000_000, 6_800, 1, 1.12, 1.01),  # RTX 5090
}
# Clocks of an SM of sm_80, for issuing instructions or for the L1 cache, whichever takes longer. Of the fused kernels
# per K step, by columns of the block tile, or 0 where channel segments are narrow.
K_STEP_CLOCKS = {
    "forward": {0: 3347, 64: 1274, 128: 1447, 256: 2052},
    "x": {0: 2505, 128: 1727},
    "offset": {0: 3124, 128: 684},
    "weight": {0: 5124, 64: 1525, 128: 1498},
}
TAP_CLOCKS = 1754  # in addition, after the products of each tap of the cotangents of offset and mask
SORT_CLOCKS = 9.8  # per sample, to sort its four entries for the cotangent of x
# Of the kernels of the im2col path per 128 bytes of columns, by channels of an offset group.
COLUMN_CLOCKS = {
    "forward": {8: 38.09, 128: 21.92, 256: 14.35},
    "x": {8: 105.22, 128: 58.16, 256: 48.34},
    "offset": {8: 42.62, 128: 28.74, 256: 18.44},
    "mask": {8: 42.62, 128: 28.74, 256: 18.44},
    "weight": {8: 38.09, 128: 21.92, 256: 14.35},
}
