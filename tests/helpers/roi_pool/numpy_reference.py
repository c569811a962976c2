"""The poolings of regions and their gradients, with loops over points in float64: the reference of the tests.

Written from the definitions that Deformable ConvNets, torchvision and mmcv publish; it shares no code and no method
with the package. Arrays are NHWC without batch dimensions; sizes are (rows, columns).
"""

import dataclasses
import itertools
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Pooling:
    """The static part of a deform_psroi_pool, by the names of the package's arguments."""

    output_size: tuple[int, int]
    group_size: tuple[int, int] = (1, 1)
    part_size: tuple[int, int] | None = None
    sample_per_part: tuple[int, int] = (4, 4)
    spatial_scale: float = 1.0
    trans_std: float = 0.1

    mode = "avg"

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


@dataclasses.dataclass(frozen=True)
class Align:
    """The static part of a RoIAlign: `sampling_ratio` 0 is adaptive; `position_sensitive` gives each bin channels."""

    output_size: tuple[int, int] = (3, 2)
    spatial_scale: float = 1.0
    sampling_ratio: tuple[int, int] = (0, 0)
    aligned: bool = True
    mode: str = "avg"
    position_sensitive: bool = False
    gamma: float = 0.1

    part_size = None
    group_size = property(lambda self: self.output_size if self.position_sensitive else (1, 1))
    trans_std = property(lambda self: self.gamma)

    def points(self, axis, bin_index, first, last, shift, length):
        """As of `Pooling`; a point outside interpolates no pixels."""
        half = 0.5 if self.aligned else 0.0
        start = first * self.spatial_scale - half
        size = last * self.spatial_scale - half - start
        if not self.aligned:
            size = max(size, 1.0)
        bin_size = size / self.output_size[axis]
        count = self.sampling_ratio[axis] or max(math.ceil(bin_size), 0)
        points = []
        for i in range(count):
            position = start + bin_index * bin_size + (i + 0.5) * bin_size / count + shift * size
            if not -1 <= position <= length:
                points.append([])
            elif position < 0 or position >= length - 1:
                points.append([(0 if position < 0 else length - 1, 1.0, 0.0)])
            else:
                low = math.floor(position)
                points.append([(low, low + 1 - position, -size), (low + 1, position - low, size)])
        return points


def pool(x, rois, offset, cotangent, pooling):
    """(pooled, gradients of sum(pooled * cotangent) with respect to x and offset); None for an offset that is None."""
    images, height, width, channels = x.shape
    group_rows, group_columns = pooling.group_size
    cells = group_rows * group_columns
    features = channels // cells
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
        for row, column, class_ in itertools.product(range(rows), range(columns), range(classes)):
            cell = row * group_rows // rows * group_columns + column * group_columns // columns
            of_class = slice(class_ * features // classes, (class_ + 1) * features // classes)
            pixels, in_pixels = (array[int(image), ..., cell::cells][..., of_class] for array in (x, in_x))
            part = r, row * part_rows // rows, column * part_columns // columns
            in_shift = in_offset[part][2 * class_ : 2 * class_ + 2]
            shift_x, shift_y = (pooling.trans_std * offset[part][2 * class_ + k].item() for k in range(2))
            if math.isnan(shift_x) or math.isnan(shift_y):
                pooled[r, row, column, of_class] = in_shift[:] = np.nan
                continue
            y_points = pooling.points(0, row, y1, y2, shift_y, height)
            x_points = pooling.points(1, column, x1, x2, shift_x, width)
            points = [list(itertools.product(*point)) for point in itertools.product(y_points, x_points)]
            if not points:
                continue
            values = np.zeros((len(points), pixels.shape[-1]))
            for value, point in zip(values, points, strict=True):
                for (py, wy, _), (px, wx, _) in point:
                    value += wy * wx * pixels[py, px]
            # [points, features]: the share of each point in the result
            shares = np.full(values.shape, 1 / len(points))
            if pooling.mode == "max":
                shares = np.arange(len(points))[:, None] == np.argmax(values, 0)
            pooled[r, row, column, of_class] = (shares * values).sum(0)
            for share, point in zip(shares * cotangent[r, row, column, of_class], points, strict=True):
                for (py, wy, slope_y), (px, wx, slope_x) in point:
                    in_pixels[py, px] += wy * wx * share
                    dot = pooling.trans_std * (share * pixels[py, px]).sum()
                    in_shift += dot * wy * slope_x, dot * slope_y * wx
    return pooled, in_x, None if plain else in_offset
