"""Deformable convolution and its gradients, with loops in float64 numpy: the reference of the tests.

It shares no code and no method with the package: it computes one sample at a time, with derivatives written by hand.
Arrays are channels last with one batch dimension, for any number of axes; offset channel (g*K + k)*axes + the axis,
mask channel g*K + k, weight [*kernel, Cin/groups, Cout].
"""

import dataclasses
import itertools
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Convolution:
    """The static part of a convolution; `padding` in any of the forms that the package takes."""

    strides: int | tuple[int, ...] = 1
    padding: str | int | tuple = 0
    kernel_dilation: int | tuple[int, ...] = 1
    feature_group_count: int = 1

    @property
    def wraps(self):
        return self.padding == "CIRCULAR"

    def explicit_padding(self, image, kernel):
        """The padding (before, after) of each axis, for an image and a kernel of these sizes."""
        if isinstance(self.padding, str):
            return tuple(map(self._named_padding, image, kernel, *self.steps(len(image))))
        return tuple((p, p) if isinstance(p, int) else tuple(p) for p in per_axis(self.padding, len(image)))

    def steps(self, dims):
        """The strides and the dilation of each axis."""
        return per_axis(self.strides, dims), per_axis(self.kernel_dilation, dims)

    def _named_padding(self, length, taps, stride, dilation):
        reach = (taps - 1) * dilation
        if self.padding == "VALID":
            return 0, 0
        if self.padding == "CIRCULAR":
            return reach // 2, reach - reach // 2
        total = max((math.ceil(length / stride) - 1) * stride + reach + 1 - length, 0)
        low = (total + (self.padding == "SAME_LOWER")) // 2
        return low, total - low

    def output_size(self, image, kernel):
        sizes = zip(image, self.explicit_padding(image, kernel), kernel, *self.steps(len(image)), strict=True)
        return tuple(
            (length + sum(pads) - (taps - 1) * dilation - 1) // stride + 1
            for length, pads, taps, stride, dilation in sizes
        )


def per_axis(value, dims):
    return (value,) * dims if isinstance(value, int) else value


def axis_corners(position, length, wraps):
    """(index, weight, derivative of the weight) of the two neighbours of a position, without those outside."""
    if not wraps and (position <= -1 or position >= length):
        return []
    low = math.floor(position)
    fraction = position - low
    pair = [(low, 1 - fraction, -1.0), (low + 1, fraction, 1.0)]
    if wraps:
        return [(index % length, weight, slope) for index, weight, slope in pair]
    return [(index, weight, slope) for index, weight, slope in pair if 0 <= index < length]


def samples(x, offset, kernel, convolution):
    """Yield (n, output pixel, k, channels, mask channel, offset channels, position) for each sample of each group."""
    (batch, *image, cin), dims = x.shape, len(kernel)
    groups = offset.shape[-1] // (dims * math.prod(kernel))
    first = [low for low, _ in convolution.explicit_padding(image, kernel)]
    strides, dilation = convolution.steps(dims)
    for n, *rest in np.ndindex(batch, *offset.shape[1:-1], groups, *kernel):
        pixel, g, tap = tuple(rest[:dims]), rest[dims], rest[dims + 1 :]
        k = np.ravel_multi_index(tap, kernel)
        sample = g * math.prod(kernel) + k
        moved = slice(sample * dims, (sample + 1) * dims)
        position = [
            o * s - low + t * d + float(by)
            for o, s, low, t, d, by in zip(pixel, strides, first, tap, dilation, offset[n, *pixel, moved], strict=True)
        ]
        yield n, pixel, k, slice(g * cin // groups, (g + 1) * cin // groups), sample, moved, position


def blend(image, channels, position, wraps):
    """(sample, its derivative along each axis), each [channels], and the pixels that it reads, with their weights."""
    zero = np.zeros(image.shape[-1])[channels]
    if np.isnan(position).any():
        return zero + np.nan, [zero + np.nan for _ in position], []
    if np.isinf(position).any():
        return zero, [zero for _ in position], []
    sample, slopes, pixels = zero.copy(), [zero.copy() for _ in position], []
    for corner in itertools.product(*[axis_corners(p, n, wraps) for p, n in zip(position, image.shape, strict=False)]):
        index, weights, of_weights = zip(*corner, strict=True)
        value = image[*index, channels]
        sample += math.prod(weights) * value
        for axis, slope in enumerate(of_weights):
            slopes[axis] += math.prod(weights[:axis]) * slope * math.prod(weights[axis + 1 :]) * value
        pixels.append((index, math.prod(weights)))
    return sample, slopes, pixels


def feature_groups(cin, cout, count):
    """The (input channels, output channels) of each feature group."""
    return [
        (slice(f * cin // count, (f + 1) * cin // count), slice(f * cout // count, (f + 1) * cout // count))
        for f in range(count)
    ]


def deform_conv(cotangent, x, offset, weight, bias=None, mask=None, *, convolution):
    """The output y [N, *output, Cout], and the gradients of sum(y * cotangent) by the names of the operands."""
    cotangent, x, offset, weight = (np.asarray(array, np.float64) for array in (cotangent, x, offset, weight))
    *kernel, _, cout = weight.shape
    kernel, output = tuple(kernel), offset.shape[:-1]
    mask = np.ones((*output, offset.shape[-1] // len(kernel))) if mask is None else np.asarray(mask, np.float64)
    taps = weight.reshape(math.prod(kernel), -1, cout)
    blends = [
        (at, blend(x[at[0]], at[3], position, convolution.wraps))
        for *at, position in samples(x, offset, kernel, convolution)
    ]
    columns = np.zeros((*output, len(taps), x.shape[-1]))
    for (n, pixel, tap, channels, index, _), (sample, *_) in blends:
        columns[n, *pixel, tap, channels] = sample * mask[n, *pixel, index]
    y, in_columns, in_taps = np.zeros((*output, cout)), np.zeros_like(columns), np.zeros_like(taps)
    for inputs, outputs in feature_groups(x.shape[-1], cout, convolution.feature_group_count):
        y[..., outputs] = np.einsum("...kc,kco->...o", columns[..., inputs], taps[..., outputs])
        in_columns[..., inputs] = np.einsum("...o,kco->...kc", cotangent[..., outputs], taps[..., outputs])
        every = (*range(len(output)),)
        in_taps[..., outputs] = np.tensordot(columns[..., inputs], cotangent[..., outputs], (every, every))

    in_x, in_offset, in_mask = np.zeros_like(x), np.zeros_like(offset), np.zeros_like(mask)
    for (n, pixel, tap, channels, index, moved), (sample, slopes, pixels) in blends:
        modulation, in_column = mask[n, *pixel, index], in_columns[n, *pixel, tap, channels]
        in_mask[n, *pixel, index] = in_column @ sample
        in_offset[n, *pixel, moved] = [modulation * (in_column @ slope) for slope in slopes]
        for corner, corner_weight in pixels:
            in_x[n, *corner, channels] += modulation * corner_weight * in_column
    gradients = {"x": in_x, "offset": in_offset, "weight": in_taps.reshape(weight.shape), "mask": in_mask}
    return y if bias is None else y + bias, gradients | {"bias": cotangent.sum((*range(len(output)),))}
