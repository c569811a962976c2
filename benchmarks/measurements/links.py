"""How long what devices exchange takes beside their products: arithmetic, nothing of it was run.

Of 3x3 convolutions of bfloat16 data with float32 positions on H200s. A ring of n devices sends (n-1)/n of an array to
gather it, twice that to sum it; the time until the first byte arrives is not counted.
"""

from typing import NamedTuple

# Assumed: of the 790 TFLOP/s that bare bfloat16 products were seen to reach, 40% in a forward + backward.
PRODUCTS = 0.4 * 790e12
TAPS = 9
ITEM, SUM = 2, 4  # bytes of a number, and of one that is summed
POSITIONS = 4 * 3 * TAPS  # bytes of offset and mask, a pixel and offset group


class Links(NamedTuple):
    """What joins devices: bytes a second that each sends."""

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
    """Forward + backward: a multiplication and an addition for each of three products."""
    return 6 * pixels * weights / PRODUCTS


def pixels_from(links):
    """Of how many output pixels a device's products take as long as the weight's sum, whatever the weight."""
    return sum_seconds(1, links) / product_seconds(1, 1)


def features_from(bandwidth, summed, gathered=0):
    """From how many output features on one image over devices is faster than on one, however many these are; the first
    of n devices exchange no longer than they multiply from n-1 times as many on.

    summed, gathered: bytes that are exchanged a pixel and channel.
    """
    return (2 * summed + gathered) * PRODUCTS / (6 * TAPS * bandwidth)


def faster(devices, features, pays):
    return devices / (1 + (devices - 1) * pays / features)
