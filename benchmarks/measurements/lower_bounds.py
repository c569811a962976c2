"""Lower bounds on the work of a deformable convolution, counted.

They are the operations of its matrix products, and the bytes of its operands and results, each moved once. The bytes of
the columns, which an unfused convolution writes and reads in addition, are counted separately.
"""

import math

from benchmarks.measurements.deform_conv import output_size

NAMES = ("A16", "B16", "C16", "D16")
ITEM, POSITION = 2, 4  # bytes of an element: bfloat16 data, float32 offsets and masks
# Per second, as measured on an H200: dense bfloat16 products, and device memory.
OPERATIONS, BYTES = 790e12, 4.3e12


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
