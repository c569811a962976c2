"""Tables of the time that exchanges between devices take, compared with the time of the matrix products."""

from benchmarks.measurements.deform_conv import SHAPES
from benchmarks.measurements.links import (
    ITEM,
    LINKS,
    NODE,
    NVLINK,
    PORT,
    POSITIONS,
    PRODUCTS,
    SUM,
    TAPS,
    faster,
    features_from,
    pixels_from,
    product_seconds,
    sum_seconds,
)
from benchmarks.reports.formatting import digits, markdown, paragraph


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
