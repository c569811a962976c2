"""Estimates how long exchanges between devices take, compared with the matrix products. Nothing of it was measured.

The estimates are for 3x3 convolutions of bfloat16 data with float32 offsets and masks on H200s. A ring of n devices
sends (n-1)/n of an array in an all-gather, and twice that in an all-reduce. Latency is not counted.
"""

from typing import NamedTuple

from benchmarks.measurements.deform_conv import SHAPES
from benchmarks.reports.formatting import digits, markdown, paragraph

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
    """The time of forward + backward: three products, with one multiplication and one addition per element."""
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


def weights_table():
    rows = [
        ["layer per device", "weight, MB", "matrix products, ms", *(f"all-reduce, ms: {links.name}" for links in LINKS)]
    ]
    for name in "ABCD":
        shape = SHAPES[name]
        weights = TAPS * shape.channels * shape.features
        pixels = shape.batch * shape.height * shape.width
        times = (product_seconds(pixels, weights), *(sum_seconds(weights, links) for links in LINKS))
        rows.append([f"{name}: {shape}", digits(SUM * weights / 1e6), *(f"{1e3 * time:.3f}" for time in times)])
    return markdown(rows)


def pixels_table():
    rows = [["", "break-even, forward + backward", "break-even, backward only"]]
    for links in LINKS:
        pixels = pixels_from(links)
        rows.append([links.name, f"{pixels:,.0f}", f"{1.5 * pixels:,.0f}"])
    return markdown(rows)


def features_table():
    exchanges = {
        "rows, x replicated": (SUM, 0),
        "rows, x sharded too": (SUM, ITEM),
        "features, Cin 256": (SUM + POSITIONS / 256, 0),
    }
    few, many = 256, 1024
    least = "min. features for a speedup"
    head = ["split", least, *(f"break-even on {n}" for n in (4, 8))]
    rows = [[*head, *(f"speedup on 8, Cout {n:,}" for n in (few, many)), f"{least}, one port"]]
    for name, exchanged in exchanges.items():
        pays = features_from(NVLINK, *exchanged)
        cells = [f"{pays:.0f}", *(f"{(n - 1) * pays:.0f}" for n in (4, 8))]
        cells += [f"{faster(8, n, pays):.1f}" for n in (few, many)]
        rows.append([name, *cells, f"{features_from(PORT, *exchanged):,.0f}"])
    return markdown(rows)


def sections():
    assumed = (
        f"Calculated, not measured. Assumed: {PRODUCTS / 1e12:.0f} TFLOP/s for the bfloat16 matrix products of forward "
        "+ backward, 40% of what plain matrix products reached in a measurement on an H200. Links, in one direction: "
        f"{NVLINK / 1e9:.0f} GB/s over NVLink in a node of {NODE}, {PORT / 1e9:.0f} GB/s over the "
        "network port of each GPU."
    )
    yield f"## Links and products\n\n{paragraph(assumed)}"
    yield f"Data parallel: matrix products of a layer, and all-reduce of its weight gradient:\n\n{weights_table()}"
    yield f"Data parallel, break-even number of output pixels per device:\n\n{pixels_table()}"
    yield f"One image over several devices, depending on the number of output features:\n\n{features_table()}"
