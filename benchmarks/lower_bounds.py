"""`python -m benchmarks.lower_bounds`: lower bounds on the time of a deformable convolution, counted.

They are the operations of its matrix products, and the bytes of its operands and results, each moved once. The bytes of
the columns, which an unfused convolution writes and reads in addition, are counted separately.
"""

import math

from benchmarks.baselines import PASSES
from benchmarks.measurements.deform_conv import SHAPES, output_size
from benchmarks.reports.formatting import list_named, markdown, paragraph
from benchmarks.reports.report import parser, write_page

NAMES = ("A16", "B16", "C16", "D16")
ITEM, POSITION = 2, 4  # bytes of an element: bfloat16 data, float32 offsets and masks
# Per second: dense bfloat16 products, as measured on an H200, and what copies reach of the device memory.
OPERATIONS, BYTES = 790e12, {"H200": 4.3e12, "H100": 3.0e12}
ABOUT = (
    "Counted, not measured: bfloat16 data, float32 offsets and masks, on an H200 or H100 with "
    f"{OPERATIONS / 1e12:.0f} TFLOP/s for dense products and {BYTES['H200'] / 1e12:.1f} or "
    f"{BYTES['H100'] / 1e12:.1f} TB/s of memory bandwidth. MB: operands and results, each moved once per pass. "
    "Columns: what an unfused convolution moves in addition."
)
HEAD = (
    "shape",
    "pass",
    "GFLOP",
    "MB",
    "columns, MB",
    "products, ms",
    *(f"{what} of an {gpu}, ms" for gpu in BYTES for what in ("memory", "memory with columns")),
)


def count(shape):
    """(operations, bytes, bytes of the columns) of forward and of forward + backward."""
    pixels = math.prod(output_size(shape))
    k = 9 * shape.channels // shape.groups
    product = 2 * pixels * k * shape.features
    x = shape.batch * shape.height * shape.width * shape.channels * ITEM
    positions = pixels * shape.offset_groups * 9 * 3 * POSITION
    weight, y = k * shape.features * ITEM, pixels * shape.features * ITEM
    columns = pixels * 9 * shape.channels
    forward = (product, x + positions + weight + y, 2 * columns * ITEM)
    # Both passes read all operands. The backward pass also reads the cotangent of y, and writes the cotangents of the
    # operands. Without fusion it also writes and reads the columns' float32 cotangents: one read per corner for x.
    both = (3 * product, 2 * (x + positions + weight + y) + x + positions + weight, columns * (4 * ITEM + 6 * POSITION))
    return forward, both


def main(arguments=None):
    args = parser("lower_bounds", __doc__).parse_args(arguments)
    sections = [paragraph(ABOUT), list_named({name: SHAPES[name] for name in NAMES}), markdown([HEAD, *rows()])]
    write_page(args.out, "lower-bounds", "Lower bounds for the deformable convolution", sections)


def rows():
    for name in NAMES:
        for title, (operations, moved, columns) in zip(PASSES, count(SHAPES[name]), strict=True):
            times = [operations / OPERATIONS]
            times += [count / rate for rate in BYTES.values() for count in (moved, moved + columns)]
            counts = (f"{operations / 1e9:.0f}", f"{moved / 1e6:.0f}", f"{columns / 1e6:.0f}")
            yield [name, title, *counts, *(f"{1e3 * time:.3f}" for time in times)]


if __name__ == "__main__":
    main()
