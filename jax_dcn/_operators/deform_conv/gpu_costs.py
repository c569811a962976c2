"""What GPUs do per clock, and what the kernels need. `python -m benchmarks.machine_code` writes this file.

benchmarks/readers/devices.py has the sources of the rates, and says which are assumed. The clocks are counted, as
docs/performance.md describes, and not measured.
"""

from typing import NamedTuple

NARROW = 64  # channels of an offset group, below which a K slice of the fused kernels has several taps


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
    # By computation, columns of the block tile, and whether an offset group has few channels.
    k_step_clocks: dict[tuple[str, int, bool], float]
    offset_tap_clocks: float  # after the products of each tap of the offset's cotangent, in addition
    sort_clocks: float  # per sorted entry
    # Of the plain kernels, by computation and channels of an offset group, per 128 bytes of columns.
    column_clocks: dict[tuple[str, int], float]


GPUS = {
    80: Gpu(
        architecture="sm_80",
        name="A100",
        sms=108,
        clock=1.41e09,
        multiply_adds=1_024,
        product_multiply_adds=1_024,
        memory=2.039e12,
        l2_bytes=40_000_000,
        l2_bytes_per_clock=5_120,
        k_step_clocks={
            ("forward", 128, False): 1701,
            ("forward", 256, False): 2246,
            ("offset", 128, False): 1062,
            ("weight", 128, False): 2064,
            ("x", 128, False): 2267,
        },
        offset_tap_clocks=2_552,
        sort_clocks=9.73,
        column_clocks={
            ("forward", 8): 38.59,
            ("forward", 128): 21.7,
            ("forward", 256): 14.17,
            ("offset", 8): 42.5,
            ("offset", 128): 27.29,
            ("offset", 256): 17.72,
            ("weight", 8): 38.59,
            ("weight", 128): 21.7,
            ("weight", 256): 14.17,
            ("x", 8): 132.69,
            ("x", 128): 58.45,
            ("x", 256): 48.57,
        },
    ),
    86: Gpu(
        architecture="sm_86",
        name="RTX 3090",
        sms=82,
        clock=1.695e09,
        multiply_adds=256,
        product_multiply_adds=256,
        memory=9.36e11,
        l2_bytes=6_000_000,
        l2_bytes_per_clock=3_280,
        k_step_clocks={
            ("forward", 128, False): 1848,
            ("offset", 128, False): 1062,
            ("weight", 128, False): 2064,
            ("x", 128, False): 2267,
        },
        offset_tap_clocks=2_552,
        sort_clocks=9.68,
        column_clocks={
            ("forward", 8): 38.59,
            ("forward", 128): 21.64,
            ("forward", 256): 14.14,
            ("offset", 8): 42.12,
            ("offset", 128): 26.78,
            ("offset", 256): 17.46,
            ("weight", 8): 38.59,
            ("weight", 128): 21.64,
            ("weight", 256): 14.14,
            ("x", 8): 132.69,
            ("x", 128): 58.58,
            ("x", 256): 48.71,
        },
    ),
    89: Gpu(
        architecture="sm_89",
        name="RTX 4090",
        sms=128,
        clock=2.52e09,
        multiply_adds=256,
        product_multiply_adds=256,
        memory=1.008e12,
        l2_bytes=72_000_000,
        l2_bytes_per_clock=5_120,
        k_step_clocks={
            ("forward", 128, False): 1848,
            ("offset", 128, False): 1062,
            ("weight", 128, False): 2064,
            ("x", 128, False): 2267,
        },
        offset_tap_clocks=2_552,
        sort_clocks=9.93,
        column_clocks={
            ("forward", 8): 38.59,
            ("forward", 128): 21.64,
            ("forward", 256): 14.14,
            ("offset", 8): 42.12,
            ("offset", 128): 26.78,
            ("offset", 256): 17.46,
            ("weight", 8): 38.59,
            ("weight", 128): 21.64,
            ("weight", 256): 14.14,
            ("x", 8): 132.69,
            ("x", 128): 58.58,
            ("x", 256): 48.71,
        },
    ),
    90: Gpu(
        architecture="sm_90",
        name="H200",
        sms=132,
        clock=1.755e09,
        multiply_adds=1269.76,
        product_multiply_adds=2_048,
        memory=4.8e12,
        l2_bytes=50_000_000,
        l2_bytes_per_clock=5_120,
        k_step_clocks={
            ("forward", 128, False): 1701,
            ("forward", 256, False): 2246,
            ("offset", 128, False): 1068,
            ("weight", 128, False): 2064,
            ("x", 128, False): 2407,
        },
        offset_tap_clocks=2_552,
        sort_clocks=9.93,
        column_clocks={
            ("forward", 8): 38.69,
            ("forward", 128): 22.7,
            ("forward", 256): 14.7,
            ("offset", 8): 44.25,
            ("offset", 128): 32.05,
            ("offset", 256): 20.13,
            ("weight", 8): 38.69,
            ("weight", 128): 22.7,
            ("weight", 256): 14.7,
            ("x", 8): 132.69,
            ("x", 128): 60.71,
            ("x", 256): 50.47,
        },
    ),
    100: Gpu(
        architecture="sm_100",
        name="B200",
        sms=148,
        clock=1.85e09,
        multiply_adds=1_024,
        product_multiply_adds=4_096,
        memory=8e12,
        l2_bytes=126_000_000,
        l2_bytes_per_clock=5_920,
        k_step_clocks={
            ("forward", 128, False): 1701,
            ("forward", 256, False): 2246,
            ("offset", 128, False): 1068,
            ("weight", 128, False): 2064,
            ("x", 128, False): 2407,
        },
        offset_tap_clocks=2_552,
        sort_clocks=9.88,
        column_clocks={
            ("forward", 8): 38.59,
            ("forward", 128): 22.61,
            ("forward", 256): 14.66,
            ("offset", 8): 44.25,
            ("offset", 128): 32.05,
            ("offset", 256): 20.13,
            ("weight", 8): 38.59,
            ("weight", 128): 22.61,
            ("weight", 256): 14.66,
            ("x", 8): 132.69,
            ("x", 128): 60.37,
            ("x", 256): 50.18,
        },
    ),
    120: Gpu(
        architecture="sm_120",
        name="RTX 5090",
        sms=170,
        clock=2.407e09,
        multiply_adds=256,
        product_multiply_adds=256,
        memory=1.792e12,
        l2_bytes=96_000_000,
        l2_bytes_per_clock=6_800,
        k_step_clocks={
            ("forward", 128, False): 1848,
            ("offset", 128, False): 1085,
            ("weight", 128, False): 2064,
            ("x", 128, False): 2495,
        },
        offset_tap_clocks=2_584,
        sort_clocks=9.91,
        column_clocks={
            ("forward", 8): 38.59,
            ("forward", 128): 21.67,
            ("forward", 256): 14.13,
            ("offset", 8): 42.18,
            ("offset", 128): 31.02,
            ("offset", 256): 19.52,
            ("weight", 8): 38.59,
            ("weight", 128): 21.67,
            ("weight", 256): 14.13,
            ("x", 8): 132.69,
            ("x", 128): 62.27,
            ("x", 256): 51.71,
        },
    ),
}
