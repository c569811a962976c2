"""Deformable aggregation and its gradients, with loops in float64: the reference of the tests.

It shares no code and no method with the package: it computes one sample at a time, with derivatives written by hand.
"""

import itertools
import math

import numpy as np

from tests.helpers.deform_conv.numpy_reference import axis_corners


def multi_scale_deformable_attention(value, locations, weights, cotangent, spatial_shapes, points, method):
    """(result, gradients of value, locations, weights) of sum(result * cotangent).

    value [S, M, D], locations [Q, M, T, 2], weights [Q, M, T], cotangent [Q, M·D]; points: of each level.
    """
    starts = np.cumsum([0, *(height * width for height, width in spatial_shapes)])
    levels = [level for level, count in enumerate(points) for _ in range(count)]

    def samples(query, head):
        for tap, level in enumerate(levels):
            x, y = locations[query, head, tap].tolist()
            height, width = spatial_shapes[level]
            if method == "bilinear":
                corners = bilinear(y * height - 0.5, x * width - 0.5, height, width, height, width)
            else:
                corners = [(nearest(y, height), nearest(x, width), 1.0 if y == y and x == x else math.nan, 0.0, 0.0)]
            yield tap, [(int(starts[level]) + row * width + column, *rest) for row, column, *rest in corners]

    out, *gradients = aggregate(value, weights, cotangent.reshape(*weights.shape[:2], -1), samples)
    return out.reshape(cotangent.shape), *gradients


def dcnv3(
    x, offset, mask, cotangent, kernel_size, strides, padding, kernel_dilation, offset_scale, remove_center, groups
):
    """The same for the operands of the function, with padding ((above, below), (left, right))."""
    height, width, _ = x.shape
    columns = offset.shape[1]
    cells = list(itertools.product(range(kernel_size[1]), range(kernel_size[0])))  # the column is the outer loop
    if remove_center:
        cells.remove((kernel_size[1] // 2, kernel_size[0] // 2))
    half = [dilation * (taps - 1) // 2 for dilation, taps in zip(kernel_dilation, kernel_size, strict=True)]
    offsets = offset.reshape(-1, groups, len(cells), 2)

    def samples(query, head):
        row, column = divmod(query, columns)
        for tap, (j, i) in enumerate(cells):
            dx, dy = offsets[query, head, tap].tolist()
            y = row * strides[0] - padding[0][0] + half[0] + (i * kernel_dilation[0] - half[0] + dy) * offset_scale
            x = column * strides[1] - padding[1][0] + half[1] + (j * kernel_dilation[1] - half[1] + dx) * offset_scale
            corners = bilinear(y, x, height, width, offset_scale, offset_scale)
            yield tap, [(row * width + column, *rest) for row, column, *rest in corners]

    split = (array.reshape(-1, groups, array.shape[-1] // groups) for array in (x, mask, cotangent))
    results = aggregate(*split, samples)
    return tuple(found.reshape(like.shape) for found, like in zip(results, (cotangent, x, offset, mask), strict=True))


def aggregate(value, weights, cotangent, samples):
    """samples(query, head) yields each tap with its corners: (pixel, weight, derivatives in x and y)."""
    queries, heads, _ = weights.shape
    out, d_value = np.zeros(cotangent.shape), np.zeros(value.shape)
    d_locations, d_weights = np.zeros((*weights.shape, 2)), np.zeros(weights.shape)
    for query, head in itertools.product(range(queries), range(heads)):
        ct = cotangent[query, head]
        for tap, corners in samples(query, head):
            weight = weights[query, head, tap]
            sample = np.zeros(value.shape[-1])
            for pixel, share, in_x, in_y in corners:
                if math.isnan(share):
                    sample[:] = math.nan
                    d_locations[query, head, tap] += math.nan if math.isnan(in_x) else 0.0
                    continue
                sample += share * value[pixel, head]
                d_value[pixel, head] += weight * share * ct
                dot = (value[pixel, head] * ct).sum()
                d_locations[query, head, tap] += weight * dot * in_x, weight * dot * in_y
            out[query, head] += weight * sample
            d_weights[query, head, tap] = (sample * ct).sum()
    return out, d_value, d_locations, d_weights


def bilinear(y, x, height, width, scale_y, scale_x):
    """The corners in the image: (row, column, weight, derivatives of the weight in the location's x and y)."""
    if math.isnan(y) or math.isnan(x):
        return [(0, 0, math.nan, math.nan, math.nan)]
    return [
        (row, column, wy * wx, wy * slope_x * scale_x, slope_y * wx * scale_y)
        for row, wy, slope_y in axis_corners(y, height, wraps=False)
        for column, wx, slope_x in axis_corners(x, width, wraps=False)
    ]


def nearest(location, size):
    if not math.isfinite(location):
        return size - 1 if location > 0 else 0
    return min(max(math.trunc(location * size + 0.5), 0), size - 1)
