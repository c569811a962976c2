"""What a deformable convolution has to do at least, counted: `python -m benchmarks.floors`.

Operations of the matrix products, and bytes of operands and results, each moved once; beside the bytes of the columns
that an unfused one writes and reads. As times on an H200, by ceilings that were measured on one.
"""

import math

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
