"""What a deformable convolution has to do at least, counted: `python -m benchmarks.floors`.

Operations of the matrix products, and bytes of operands and results, each moved once; beside the bytes of the columns
that an unfused one writes and reads. As times on an H200, by ceilings that were measured on one.
"""

import math
from datetime import date

from benchmarks.contenders import PASSES
from benchmarks.deform_conv import SHAPES
from benchmarks.report import RESULTS, markdown

NAMES = ("A16", "B16", "C16", "D16")
ITEM, POSITION = 2, 4  # bytes of bfloat16 data, of float32 offsets and masks
OPERATIONS, BYTES = 790e12, 4.3e12  # a second: dense bfloat16 products, device memory


def count(shape):
    """Operations, bytes and bytes of columns, forward and forward + backward."""
    pixels = shape.batch * math.ceil(shape.height / shape.stride) * math.ceil(shape.width / shape.stride)
    depth = 9 * shape.channels // shape.groups
    product = 2 * pixels * depth * shape.features
    x = shape.batch * shape.height * shape.width * shape.channels * ITEM
    positions = pixels * shape.offset_groups * 9 * 3 * POSITION
    weight, y = depth * shape.features * ITEM, pixels * shape.features * ITEM
    columns = pixels * 9 * shape.channels
    forward = (product, x + positions + weight + y, 2 * columns * ITEM)
    # Both passes read all operands, and the second the output's cotangent; it writes the cotangents of the others. Of
    # columns, an unfused one writes and reads their float32 cotangents too, those of x once for each corner.
    both = (3 * product, 2 * (x + positions + weight + y) + x + positions + weight, columns * (4 * ITEM + 6 * POSITION))
    return forward, both


def table():
    rows = [
        ["shape", "pass", "GFLOP", "MB", "columns, MB", "products, ms", "memory, ms", "memory with columns, ms"],
    ]
    for name in NAMES:
        for title, (operations, moved, columns) in zip(PASSES, count(SHAPES[name]), strict=True):
            times = (operations / OPERATIONS, moved / BYTES, (moved + columns) / BYTES)
            rows.append(
                [
                    *(name, title, f"{operations / 1e9:.0f}", f"{moved / 1e6:.0f}", f"{columns / 1e6:.0f}"),
                    *(f"{1e3 * time:.3f}" for time in times),
                ]
            )
    return markdown(rows)


def main():
    shapes = "\n".join(f"- {name}: {SHAPES[name]}" for name in NAMES)
    text = (
        f"# Floors of the deformable convolution\n\n{date.today()}, counted, not measured: bfloat16 data, float32 "
        "offsets and masks, on an H200\nwith 790 TFLOP/s of dense products and 4.3 TB/s of memory. MB: operands and "
        "results, each moved once a pass. Columns: what\nan unfused one moves besides.\n\n"
        f"{shapes}\n\n{table()}\n"
    )
    path = RESULTS / f"{date.today()}-floors.md"
    path.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
