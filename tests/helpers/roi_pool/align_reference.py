"""RoIAlign, its position-sensitive and its deformable form, and their gradients, with loops over points in float64.

Written from the definitions that torchvision and mmcv publish; it shares no code and no method with the package. Arrays
are NHWC without batch dimensions; sizes are (rows, columns).
"""

import dataclasses
import itertools
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Align:
    """A pooling. `sampling_ratio` 0 is adaptive; `position_sensitive` gives each bin channels of its own."""

    output_size: tuple[int, int] = (3, 2)
    spatial_scale: float = 1.0
    sampling_ratio: tuple[int, int] = (0, 0)
    aligned: bool = True
    mode: str = "avg"
    position_sensitive: bool = False
    gamma: float = 0.1

    def along(self, axis, corners):
        """The start, the size and the number of points of each bin, of a region from corners[0] to corners[1]."""
        half = 0.5 if self.aligned else 0.0
        start = corners[0] * self.spatial_scale - half
        size = corners[1] * self.spatial_scale - half - start
        if not self.aligned:
            size = max(size, 1.0)
        count = self.sampling_ratio[axis] or max(math.ceil(size / self.output_size[axis]), 0)
        return start, size, count

    def position(self, axis, region, bin_index, i, shift):
        start, size, count = region
        bin_size = size / self.output_size[axis]
        return start + bin_index * bin_size + (i + 0.5) * bin_size / count + shift * size


def corners_of(position, length):
    """The pixels that a point reads, with their weights and the derivatives of these; none outside."""
    if not -1 <= position <= length:
        return []
    if position < 0 or position >= length - 1:
        return [(0 if position < 0 else length - 1, 1.0, 0.0)]
    low = math.floor(position)
    return [(low, low + 1 - position, -1.0), (low + 1, position - low, 1.0)]


def pool(x, rois, offset, cotangent, align):
    """(pooled, gradients of sum(pooled * cotangent) with respect to x and offset); None for an offset that is None."""
    images, height, width, channels = x.shape
    rows, columns = align.output_size
    features = channels // (rows * columns) if align.position_sensitive else channels
    pooled = np.zeros((len(rois), rows, columns, features))
    in_x, in_offset = np.zeros(x.shape), None if offset is None else np.zeros(offset.shape)
    for r, (image, x1, y1, x2, y2) in enumerate(rois.tolist()):
        if not 0 <= image < images:
            continue
        if not all(map(math.isfinite, (x1, y1, x2, y2))):
            pooled[r] = np.nan
            continue
        along_y, along_x = align.along(0, (y1, y2)), align.along(1, (x1, x2))
        for row, column in itertools.product(range(rows), range(columns)):
            channel = slice(row * columns + column, None, rows * columns) if align.position_sensitive else slice(None)
            shift_x, shift_y = (0.0, 0.0) if offset is None else align.gamma * offset[r, row, column]
            if math.isnan(shift_x) or math.isnan(shift_y):
                pooled[r, row, column] = in_offset[r, row, column] = np.nan
                continue
            ys = [corners_of(align.position(0, along_y, row, i, shift_y), height) for i in range(along_y[2])]
            xs = [corners_of(align.position(1, along_x, column, i, shift_x), width) for i in range(along_x[2])]
            points = list(itertools.product(ys, xs))
            own, d = x[int(image), ..., channel], cotangent[r, row, column]
            d_own = in_x[int(image), ..., channel]
            values = [
                sum(
                    (wy * wx * own[py, px] for (py, wy, _), (px, wx, _) in itertools.product(*point)),
                    np.zeros(features),
                )
                for point in points
            ]
            if not values:
                continue
            # [points, features]: the share of each point in the result
            shares = np.full((len(points), features), 1 / len(points))
            if align.mode == "max":
                shares = np.arange(len(points))[:, None] == np.argmax(values, 0)
            pooled[r, row, column] = (shares * values).sum(0)
            for share, point in zip(shares, points, strict=True):
                for (py, wy, slope_y), (px, wx, slope_x) in itertools.product(*point):
                    d_own[py, px] += share * wy * wx * d
                    if in_offset is not None:
                        dot = align.gamma * (share * d * own[py, px]).sum()
                        in_offset[r, row, column] += dot * along_x[1] * wy * slope_x, dot * along_y[1] * slope_y * wx
    return pooled, in_x, in_offset
