"""Sampling of images and its gradients, with loops in float64: the reference of the tests.

It shares no code and no method with the package: it reflects step by step, and derivatives are written by hand.
"""

import itertools
import math

import numpy as np

FAR = 2**30


def sample(x, locations, cotangent, axis):
    """(result, gradients of x and locations) of sum(result * cotangent).

    x [*sizes, C], locations [P, dims] in the order of the axes, cotangent [P, C]. axis(coordinate, size): the pixels
    of a sample along an axis, each as (pixel or None, weight, derivative of the weight in the coordinate).
    """
    sizes = x.shape[:-1]
    out, d_x, d_locations = np.zeros(cotangent.shape), np.zeros(x.shape), np.zeros(locations.shape)
    for p, location in enumerate(locations.tolist()):
        axes = [axis(coordinate, size) for coordinate, size in zip(location, sizes, strict=True)]
        nan = any(math.isnan(weight) for taps in axes for _, weight, _ in taps)
        if nan:
            out[p] = np.nan
            slopes = [any(slope != 0 for _, _, slope in taps) for taps in axes]
            d_locations[p] = np.nan if any(slopes) else 0
            continue
        for taps in itertools.product(*axes):
            if any(pixel is None for pixel, _, _ in taps):
                continue
            index = tuple(pixel for pixel, _, _ in taps)
            weight = math.prod(weight for _, weight, _ in taps)
            out[p] += weight * x[index]
            d_x[index] += weight * cotangent[p]
            for a, (_, _, slope) in enumerate(taps):
                others = math.prod(weight for b, (_, weight, _) in enumerate(taps) if b != a)
                d_locations[p, a] += slope * others * (x[index] @ cotangent[p])
    return out, d_x, d_locations


def grid_axis(coordinate, size, method, padding_mode, align_corners):
    """The pixels of a sample of PyTorch's grid_sample along an axis."""
    scale = (size - 1 if align_corners else size) / 2
    position = coordinate * scale + (size - 1) / 2
    if scale == 0 and not math.isnan(coordinate):
        position = (size - 1) / 2
    low, high = (0, size - 1) if align_corners else (-0.5, size - 0.5)
    if padding_mode == "zeros" or method == "bicubic":
        folded, slope = position, scale
    elif math.isnan(position) or size == 0:
        folded, slope = position, 0
    elif padding_mode == "reflection" and abs(position) >= FAR:
        return [(None, 0.0, 0.0)]
    else:
        folded, slope = position, scale
        while padding_mode == "reflection" and high > low and not low <= folded <= high:
            folded, slope = (2 * low - folded if folded < low else 2 * high - folded), -slope
        if not 0 < folded < size - 1:
            folded, slope = min(max(folded, 0), size - 1), 0

    def pixel(index):
        if padding_mode == "zeros" or method != "bicubic":
            return index if 0 <= index < size else None
        return outside(index, size, {"border": "nearest"}.get(padding_mode, "mirror" if align_corners else "reflect"))

    return taps(folded, slope, {"bilinear": 1, "nearest": 0, "bicubic": 3}[method], pixel)


def pixel_axis(coordinate, size, order, mode):
    """The pixels of a sample of `map_coordinates` along an axis."""
    repeats = mode in ("wrap", "mirror", "reflect")
    if repeats and abs(coordinate) >= FAR:
        return [(None, 0.0, 0.0)]
    if order == 0 and math.isfinite(coordinate):
        coordinate = math.copysign(math.floor(abs(coordinate) + 0.5), coordinate)
    return taps(coordinate, 1, order, lambda index: outside(index, size, mode))


def outside(index, size, mode):
    """The pixel that an index stands for."""
    if mode == "constant":
        return index if 0 <= index < size else None
    if mode == "nearest" or size == 0:
        return min(max(index, 0), size - 1) if size else None
    while not 0 <= index < size:
        if mode == "wrap":
            index += size if index < 0 else -size
        elif size == 1:
            index = 0
        else:
            edge = int(mode == "reflect")
            index = -index - edge if index < 0 else 2 * (size - 1) - index + edge
    return index


def taps(position, slope, order, pixel):
    """The taps of a position: one, two, or with order 3 four."""
    if math.isnan(position):
        return [(None, math.nan, float(order > 0))]
    if math.isinf(position):  # as any position that is far outside
        far = pixel(-(10**6) if position < 0 else 10**6)
        return [(far, 1.0, 0.0)]
    if order == 0:
        return [(pixel(round(position)), 1.0, 0.0)]
    low = math.floor(position)
    fraction = position - low
    if order == 1:
        return [(pixel(low), 1 - fraction, -slope), (pixel(low + 1), fraction, slope)]
    return [(pixel(low + k), *cubic(fraction - k, slope)) for k in (-1, 0, 1, 2)]


def cubic(distance, slope):
    """The weight of a pixel at this distance, and its derivative in the coordinate."""
    a, t = -0.75, abs(distance)
    sign = slope if distance >= 0 else -slope
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1, sign * (3 * (a + 2) * t**2 - 2 * (a + 3) * t)
    return a * (t**3 - 5 * t**2 + 8 * t - 4), sign * a * (3 * t**2 - 10 * t + 8)


def grid_sample(x, grid, cotangent, method, padding_mode, align_corners):
    """`sample` of x and a grid whose coordinates are x first, of any dimensions of points."""

    def axis(coordinate, size):
        return grid_axis(coordinate, size, method, padding_mode, align_corners)

    flat = grid[..., ::-1].reshape(-1, grid.shape[-1])
    out, d_x, d_grid = sample(x, flat, cotangent.reshape(len(flat), -1), axis)
    return out.reshape(cotangent.shape), d_x, d_grid[:, ::-1].reshape(grid.shape)


def map_coordinates(x, coordinates, cotangent, order, mode):
    """`sample` of x with channels and coordinates [dims, *points]."""
    flat = coordinates.reshape(len(coordinates), -1).T
    out, d_x, d_flat = sample(
        x, flat, cotangent.reshape(len(flat), -1), lambda coordinate, size: pixel_axis(coordinate, size, order, mode)
    )
    return out.reshape(cotangent.shape), d_x, d_flat.T.reshape(coordinates.shape)


def resize(x, size, cotangent, method, align_corners):
    """(result, gradient of x) of PyTorch's interpolate: a product with a matrix along each axis. x [..., H, W, C]."""
    rows, columns = (
        resize_matrix(*lengths, method, align_corners) for lengths in zip(x.shape[-3:-1], size, strict=True)
    )
    out = np.einsum("yh,xw,...hwc->...yxc", rows, columns, x)
    return out, np.einsum("yh,xw,...yxc->...hwc", rows, columns, cotangent)


def resize_matrix(length, count, method, align_corners):
    """The weights [count, length] of the pixels of an axis."""
    matrix = np.zeros((count, length))
    for i in range(count):
        if align_corners:
            position = i * (length - 1) / (count - 1) if count > 1 else 0
        else:
            position = (i + 0.5) * length / count - 0.5
        order = {"bilinear": 1, "bicubic": 3}[method]
        for pixel, weight, _ in taps(position, 1, order, lambda index: outside(index, length, "nearest")):
            matrix[i, pixel] += weight
    return matrix
