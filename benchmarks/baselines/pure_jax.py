"""The operators written in `jax.numpy` in the usual way, and differentiated by JAX.

The pixels are flattened, and each of the four corners of all samples is gathered at once. On a CPU this is the fastest
way to write it, or close to the fastest; loops over the taps were among the alternatives.
"""

import itertools
import math

import jax.numpy as jnp
import numpy as np
from jax import lax


def deform_conv2d(x, offset, weight, mask, *, stride, dilation, groups):
    batch, height, width, channels = x.shape
    rows, columns = offset.shape[1:3]
    kernel, taps = weight.shape[0], weight.shape[0] * weight.shape[1]
    offset_groups = mask.shape[-1] // taps
    tap_y, tap_x = np.divmod(np.arange(taps), kernel)
    offset = offset.reshape(batch, rows, columns, offset_groups, taps, 2)
    mask = mask.reshape(batch, rows, columns, offset_groups, taps)
    y = (np.arange(rows) * stride - dilation)[:, None, None, None] + tap_y * dilation + offset[..., 0]
    x_ = (np.arange(columns) * stride - dilation)[:, None, None] + tap_x * dilation + offset[..., 1]
    pixels = x.reshape(-1, channels // offset_groups)
    image, group = np.arange(batch)[:, None, None, None, None], np.arange(offset_groups)[:, None]
    samples = 0
    for pixel, corner_weight in corners(y, x_, height, width):
        index = (image * height * width + pixel) * offset_groups + group
        share = (corner_weight * mask).astype(x.dtype)
        samples += share[..., None] * jnp.take(pixels, index, axis=0, mode="clip")
    samples = jnp.moveaxis(samples, 3, 4)  # [batch, rows, columns, taps, offset groups, channels per offset group]
    if groups == 1:
        return samples.reshape(batch, rows, columns, taps * channels) @ weight.reshape(taps * channels, -1)
    samples = samples.reshape(batch, rows, columns, taps, groups, channels // groups)
    weight = weight.reshape(taps, channels // groups, groups, -1)
    return jnp.einsum("nhwkgc,kcgo->nhwgo", samples, weight).reshape(batch, rows, columns, -1)


def deform_psroi_pool(x, rois, offset, *, output_size, spatial_scale, group_size, sample_per_part, trans_std=0.1):
    images, height, width, channels = x.shape
    classes = offset.shape[-1] // 2
    features = channels // group_size**2 // classes  # per class
    pixels = x.reshape(images, height, width, classes, features, group_size, group_size)
    pixels = jnp.moveaxis(pixels, (5, 6), (3, 4)).reshape(-1, features)
    first = jnp.round(rois[:, 1:3]) * spatial_scale - 0.5
    size = jnp.maximum((jnp.round(rois[:, 3:]) + 1) * spatial_scale - 0.5 - first, 0.1)
    offset = offset.reshape(*offset.shape[:3], classes, 2)

    def axis(k, number, pixels):
        """Low and high pixel, fraction between them, and which points count: [R, out, out, classes, points]."""
        start, extent = first[:, k, None, None, None], size[:, k, None, None, None]
        bin_ = extent / output_size
        start = (start + number * bin_ + offset[..., k] * trans_std * extent)[..., None]
        position = start + np.arange(sample_per_part) * (bin_ / sample_per_part)[..., None]
        kept = (position >= -0.5) & (position <= pixels - 0.5)
        position = jnp.clip(position, 0, pixels - 1)
        low = jnp.floor(position)
        return low.astype(jnp.int32), jnp.ceil(position).astype(jnp.int32), position - low, kept

    number = np.arange(output_size)
    low_x, high_x, fraction_x, kept_x = (a[..., None, :] for a in axis(0, number[:, None], width))
    low_y, high_y, fraction_y, kept_y = (a[..., :, None] for a in axis(1, number[:, None, None], height))
    kept = kept_y & kept_x
    count = jnp.maximum(kept.sum((4, 5), keepdims=True), 1)
    image = rois[:, 0].astype(jnp.int32)[:, None, None, None, None, None]
    group = number * group_size // output_size
    group_y, group_x = group[:, None, None, None, None], group[:, None, None, None]
    class_, total = np.arange(classes)[:, None, None], 0
    for row, weight_y in ((low_y, 1 - fraction_y), (high_y, fraction_y)):
        for column, weight_x in ((low_x, 1 - fraction_x), (high_x, fraction_x)):
            index = ((image * height + row) * width + column) * group_size + group_y
            index = (index * group_size + group_x) * classes + class_
            share = jnp.where(kept, weight_y * weight_x, 0) / count  # [R, out, out, classes, points, points]
            total += (share[..., None] * jnp.take(pixels, index, axis=0, mode="clip")).sum((4, 5))
    return total.reshape(*total.shape[:3], classes * features).astype(x.dtype)


def roi_align(x, rois, *, output_size, spatial_scale, sampling_ratio):
    _, height, width, channels = x.shape
    count, pixels, total = output_size * sampling_ratio, x.reshape(-1, channels), 0

    def axis(first, last, size):
        """Low and high pixel, fraction between them, and which points are in the image: [R, points of all bins]."""
        start = first * spatial_scale - 0.5
        step = (last * spatial_scale - 0.5 - start) / count
        position = start[:, None] + (np.arange(count) + 0.5) * step[:, None]
        inside = (position >= -1) & (position <= size)
        position = jnp.clip(position, 0, size - 1)
        low = jnp.floor(position).astype(jnp.int32)
        found = low, jnp.minimum(low + 1, size - 1), position - low, inside
        return [array.reshape(-1, output_size, sampling_ratio) for array in found]

    low_y, high_y, fraction_y, inside_y = (a[:, :, None, :, None] for a in axis(rois[:, 2], rois[:, 4], height))
    low_x, high_x, fraction_x, inside_x = (a[:, None, :, None, :] for a in axis(rois[:, 1], rois[:, 3], width))
    image = rois[:, 0].astype(jnp.int32)[:, None, None, None, None]
    for row, weight_y in ((low_y, 1 - fraction_y), (high_y, fraction_y)):
        for column, weight_x in ((low_x, 1 - fraction_x), (high_x, fraction_x)):
            share = jnp.where(inside_y & inside_x, weight_y * weight_x, 0) / sampling_ratio**2
            index = (image * height + row) * width + column  # [R, out, out, points, points]
            total += (share[..., None] * jnp.take(pixels, index, axis=0, mode="clip")).sum((3, 4))
    return total.astype(x.dtype)


def multi_scale_deformable_attention(value, sampling_locations, attention_weights, *, spatial_shapes):
    total, first = 0, 0
    for level, (height, width) in enumerate(spatial_shapes):
        pixels, first = value[:, first : first + height * width], first + height * width
        x, y = sampling_locations[..., level, :, 0] * width - 0.5, sampling_locations[..., level, :, 1] * height - 0.5
        total += weighted_samples(pixels, y, x, attention_weights[..., level, :], height, width)
    return total.reshape(*total.shape[:2], -1).astype(value.dtype)


def dcnv3(x, offset, mask, *, kernel_size, padding, groups):
    batch, height, width, channels = x.shape
    taps = kernel_size**2
    offset = offset.reshape(batch, height, width, groups, taps, 2)
    tap_x, tap_y = np.divmod(np.arange(taps), kernel_size)
    y = (np.arange(height) - padding)[:, None, None, None] + tap_y + offset[..., 1]
    x_ = (np.arange(width) - padding)[:, None, None] + tap_x + offset[..., 0]
    total = weighted_samples(
        x.reshape(batch, height * width, groups, -1),
        *(a.reshape(batch, height * width, groups, taps) for a in (y, x_, mask)),
        height,
        width,
    )
    return total.reshape(batch, height, width, channels).astype(x.dtype)


def weighted_samples(value, y, x, weights, height, width):
    """Sums over the taps of weighted samples of value [batch, pixels, heads, channels].

    y, x and weights: [batch, queries, heads, taps].
    """
    batch, pixels, heads, channels = value.shape
    image, head = np.arange(batch)[:, None, None, None], np.arange(heads)[:, None]
    flat, total = value.reshape(-1, channels), 0
    for pixel, corner_weight in corners(y, x, height, width):
        index = (image * pixels + pixel) * heads + head
        total += ((corner_weight * weights)[..., None] * jnp.take(flat, index, axis=0, mode="clip")).sum(-2)
    return total


def grid_sample(x, grid):
    """Bilinear or trilinear, with zeros outside; `grid` has one or more dimensions of points."""
    batch, *sizes, channels = x.shape
    points, pixels, total = grid.reshape(batch, -1, len(sizes)), x.reshape(-1, channels), 0
    axes = [
        [(low, 1 - (p - low)), (low + 1, p - low)]
        for axis, size in enumerate(sizes)
        for p in [((points[..., len(sizes) - 1 - axis] + 1) * size - 1) / 2]
        for low in [jnp.floor(p)]
    ]
    for taps in itertools.product(*axes):
        index, weight = jnp.arange(batch)[:, None], 1
        for (pixel, share), size in zip(taps, sizes, strict=True):
            weight = weight * jnp.where((pixel >= 0) & (pixel < size), share, 0)
            index = index * size + jnp.clip(pixel, 0, size - 1).astype(jnp.int32)
        total += weight[..., None].astype(x.dtype) * jnp.take(pixels, index, axis=0, mode="clip")
    return total.reshape(*grid.shape[:-1], channels)


def cubic_spline(input, coordinates, *, order, mode):
    """The cubic spline of order 3 with mode="mirror": a recursive prefilter, then gathers of 4 coefficients an axis."""
    sizes, pole = input.shape, math.sqrt(3) - 2
    for axis in range(input.ndim):
        rows = jnp.moveaxis(6 * input, axis, 0)
        size = len(rows)
        powers = pole ** np.arange(size, dtype=np.float32)
        powers[1:-1] += pole ** (2 * size - 2 - np.arange(1, size - 1))
        start = jnp.tensordot(powers, rows, 1) / (1 - pole ** (2 * size - 2))
        _, rows = lax.scan(lambda one, row: (row + pole * one, row + pole * one), start, rows[1:])
        last = pole / (pole * pole - 1) * (rows[-1] + pole * (rows[-2] if size > 2 else start))
        rows = jnp.concatenate([start[None], rows])
        _, rows = lax.scan(lambda one, row: (pole * (one - row),) * 2, last, rows[:-1], reverse=True)
        input = jnp.moveaxis(jnp.concatenate([rows, last[None]]), 0, axis)
    axes = []
    for coordinate, size in zip(coordinates, sizes, strict=True):
        low = jnp.floor(coordinate)
        f = coordinate - low
        weights = (1 - f) ** 3 / 6, 2 / 3 - f**2 * (2 - f) / 2, 2 / 3 - (1 - f) ** 2 * (1 + f) / 2, f**3 / 6
        pixels = [jnp.abs(low.astype(jnp.int32) + tap) for tap in (-1, 0, 1, 2)]
        axes.append([(size - 1 - jnp.abs(size - 1 - pixel), w) for pixel, w in zip(pixels, weights, strict=True)])
    total = 0
    for taps in itertools.product(*axes):
        pixels, weights = zip(*taps, strict=True)
        total += math.prod(weights) * input[pixels]
    return total.astype(input.dtype)


def corners(y, x, height, width):
    """Yields the pixels, numbered row by row, and the weights of the four corners of samples; weight 0 outside."""
    low_y, low_x = jnp.floor(y), jnp.floor(x)
    for row, weight_y in ((low_y, low_y + 1 - y), (low_y + 1, y - low_y)):
        for column, weight_x in ((low_x, low_x + 1 - x), (low_x + 1, x - low_x)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            pixel = jnp.clip(row, 0, height - 1) * width + jnp.clip(column, 0, width - 1)
            yield pixel.astype(jnp.int32), jnp.where(inside, weight_y * weight_x, 0)
