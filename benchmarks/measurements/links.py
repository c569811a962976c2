"""Estimates how long exchanges between devices take, compared with the matrix products. Nothing of it was measured.

The estimates are for 3x3 convolutions of bfloat16 data with float32 offsets and masks on H200s. A ring of n devices
sends (n-1)/n of an array in an all-gather, and twice that in an all-reduce. Latency is not counted.
"""

from typing import NamedTuple

# Assumed for forward + backward: 40% of the 790 TFLOP/s that plain bfloat16 products reached in a measurement.
PRODUCTS = 0.4 * 790e12
TAPS = 9
ITEM, SUM = 2, 4  # bytes of an element, and of an element that is all-reduced
POSITIONS = 4 * 3 * TAPS  # bytes of offset and mask per pixel and offset group


class Links(NamedTuple):
    """The links between devices; bandwidth is the bytes per second that each device sends."""

    name: str
    devices: int
    bandwidth: float


NVLINK, PORT, NODE = 450e9, 50e9, 8
LINKS = (
    Links("8 GPUs, NVLink", NODE, NVLINK),
    Links("1,000 GPUs, all 8 ports of a node", 1000, NODE * PORT),
    Links("1,000 GPUs, one port", 1000, PORT),
)


def sum_seconds(numbers, links):
    return 2 * (links.devices - 1) / links.devices * SUM * numbers / links.bandwidth


def product_seconds(pixels, weights):
    """Of forward + backward: three matrix products, each with one multiplication and one addition per element."""
    return 6 * pixels * weights / PRODUCTS


def pixels_from(links):
    """The output pixels per device at which the all-reduce of any weight's gradient takes as long as the products."""
    return sum_seconds(1, links) / product_seconds(1, 1)


def features_from(bandwidth, summed, gathered=0):
    """The number of output features above which several devices are faster than one, for any number of devices.

    With n-1 times as many, the exchange between n devices takes as long as their matrix products.
    summed, gathered: bytes per pixel and channel that are all-reduced and all-gathered.
    """
    return (2 * summed + gathered) * PRODUCTS / (6 * TAPS * bandwidth)


def faster(devices, features, pays):
    """The speedup of several devices over one, if no exchange overlaps with the products."""
    return devices / (1 + (devices - 1) * pays / features)
