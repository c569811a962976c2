"""Deformable PS-RoI pooling and its gradients, with loops in float64: the reference of the tests.

It shares no code and no method with the package: it computes one point at a time, with derivatives written by hand.
Arrays are NHWC without batch dimensions; sizes are (rows, columns).
"""

import dataclasses
import itertools
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Pooling:
    """The static part of a pooling, by the names of the package's arguments."""

    output_size: tuple[int, int]
    group_size: tuple[int, int] = (1, 1)
    part_size: tuple[int, int] | None = None
    sample_per_part: tuple[int, int] = (4, 4)
    spatial_scale: float = 1.0
    trans_std: float = 0.1

    def points(self, axis, bin_index, first, last, shift, length):
        """The points of a bin along an axis of `length` pixels, without those that are left out.

        Each point is a list of the pixels that it interpolates: (pixel, weight, derivative of the weight with respect
        to the shift).
        """
        start = round_half_away(first) * self.spatial_scale - 0.5
        size = max((round_half_away(last) + 1) * self.spatial_scale - 0.5 - start, 0.1)
        bin_size = size / self.output_size[axis]
        step = bin_size / self.sample_per_part[axis]
        points = []
        for i in range(self.sample_per_part[axis]):
            position = start + bin_index * bin_size + shift * size + i * step
            if position < -0.5 or position > length - 0.5:
                continue
            position = min(max(position, 0.0), length - 1.0)
            low = math.floor(position)
            if low == position:
                points.append([(low, 1.0, 0.0)])
            else:
                points.append([(low, low + 1 - position, -size), (low + 1, position - low, size)])
        return points


def round_half_away(value):
    return math.copysign(math.floor(abs(value) + 0.5), value)


def pool(x, rois, offset, cotangent, pooling):
    """(pooled, gradients of sum(pooled * cotangent) with respect to x and offset); None for an offset that is None."""
    images, height, width, channels = x.shape
    group_rows, group_columns = pooling.group_size
    features = channels // (group_rows * group_columns)
    rows, columns = pooling.output_size
    part_rows, part_columns = pooling.part_size or pooling.output_size
    plain = offset is None
    if plain:
        offset = np.zeros((len(rois), part_rows, part_columns, 2))
    classes = offset.shape[-1] // 2
    pooled, in_x, in_offset = np.zeros((len(rois), rows, columns, features)), np.zeros(x.shape), np.zeros(offset.shape)

    for r, (image, x1, y1, x2, y2) in enumerate(rois.tolist()):
        if not 0 <= image < images:
            continue
        if not all(map(math.isfinite, (x1, y1, x2, y2))):
            pooled[r] = np.nan
            continue
        for row, column, d in itertools.product(range(rows), range(columns), range(features)):
            channel = (d * group_rows + row * group_rows // rows) * group_columns + column * group_columns // columns
            class_ = d // (features // classes)
            part = r, row * part_rows // rows, column * part_columns // columns
            shift_x, shift_y = (pooling.trans_std * offset[part][2 * class_ + k].item() for k in range(2))
            in_shift = in_offset[part][2 * class_ : 2 * class_ + 2]
            if math.isnan(shift_x) or math.isnan(shift_y):
                pooled[r, row, column, d] = in_shift[:] = np.nan
                continue
            y_points = pooling.points(0, row, y1, y2, shift_y, height)
            x_points = pooling.points(1, column, x1, x2, shift_x, width)
            for y_point, x_point in itertools.product(y_points, x_points):
                for (py, wy, slope_y), (px, wx, slope_x) in itertools.product(y_point, x_point):
                    pixel = int(image), py, px, channel
                    share = 1 / (len(y_points) * len(x_points))
                    pooled[r, row, column, d] += share * wy * wx * x[pixel]
                    share *= cotangent[r, row, column, d]
                    in_x[pixel] += share * wy * wx
                    in_shift[0] += share * pooling.trans_std * wy * slope_x * x[pixel]
                    in_shift[1] += share * pooling.trans_std * slope_y * wx * x[pixel]
    return pooled, in_x, None if plain else in_offset
