"""How long what devices exchange takes beside their products: arithmetic, nothing of it was run.

Of 3x3 convolutions of bfloat16 data with float32 positions on H200s. A ring of n devices sends (n-1)/n of an array to
gather it, twice that to sum it; the time until the first byte arrives is not counted.
"""

from typing import NamedTuple

from benchmarks.deform_conv import SHAPES
from benchmarks.report import digits, markdown, paragraph

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


def weights_table():
    rows = [["layer of a device", "weight, MB", "products, ms", *(f"sum, ms: {links.name}" for links in LINKS)]]
    for name in "ABCD":
        shape = SHAPES[name]
        weights = TAPS * shape.channels * shape.features
        pixels = shape.batch * shape.height * shape.width
        times = (product_seconds(pixels, weights), *(sum_seconds(weights, links) for links in LINKS))
        rows.append([f"{name}: {shape}", digits(SUM * weights / 1e6), *(f"{1e3 * time:.3f}" for time in times)])
    return markdown(rows)


def pixels_table():
    rows = [["", "as long as the weight's sum", "as long, of the backward pass alone"]]
    for links in LINKS:
        pixels = pixels_from(links)
        rows.append([links.name, f"{pixels:,.0f}", f"{1.5 * pixels:,.0f}"])
    return markdown(rows)


def features_table():
    exchanges = {
        "rows, x whole": (SUM, 0),
        "rows, x split too": (SUM, ITEM),
        "features, of 256 channels": (SUM + POSITIONS / 256, 0),
    }
    few, many = 256, 1024
    head = ["split", "pays from", *(f"no longer on {n} from" for n in (4, 8))]
    rows = [[*head, *(f"faster on 8 with {n:,}" for n in (few, many)), "pays from, by one port"]]
    for name, exchanged in exchanges.items():
        pays = features_from(NVLINK, *exchanged)
        cells = [f"{pays:.0f}", *(f"{(n - 1) * pays:.0f}" for n in (4, 8))]
        cells += [f"{faster(8, n, pays):.1f} times" for n in (few, many)]
        rows.append([name, *cells, f"{features_from(PORT, *exchanged):,.0f}"])
    return markdown(rows)


def sections():
    assumed = (
        f"Arithmetic, of nothing that was run. Assumed: {PRODUCTS / 1e12:.0f} TFLOP/s of bfloat16 products in a "
        "forward + backward, 40% of what bare ones were seen to reach on an H200. Links, one way: "
        f"{NVLINK / 1e9:.0f} GB/s by NVLink in a node of {NODE}, {PORT / 1e9:.0f} GB/s by each GPU's network port."
    )
    yield f"## Links and products\n\n{paragraph(assumed)}"
    yield f"Data parallel, a layer's products and its weight's sum:\n\n{weights_table()}"
    yield f"Data parallel, output pixels a device from which on products take:\n\n{pixels_table()}"
    yield f"One image over devices, by output features:\n\n{features_table()}"
