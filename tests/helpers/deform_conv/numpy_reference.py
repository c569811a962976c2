"""Deformable convolution and its gradients, with loops in float64 numpy: the reference of the tests.

It shares no code and no method with the package: it computes one sample at a time, with derivatives written by hand.
Arrays are NHWC with one batch dimension; offset channel (g*K + k)*2 + {0: dy, 1: dx}, mask channel
g*K + k, weight [kh, kw, Cin/groups, Cout].
"""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Convolution:
    """The static part of a convolution; `padding` in any of the forms that the package takes."""

    strides: tuple[int, int] = (1, 1)
    padding: str | int | tuple = 0
    kernel_dilation: tuple[int, int] = (1, 1)
    feature_group_count: int = 1

    @property
    def wraps(self):
        return self.padding == "CIRCULAR"

    def explicit_padding(self, image, kernel):
        """((top, bottom), (left, right)) for an image and a kernel of the given (height, width)."""
        if isinstance(self.padding, str):
            return tuple(map(self._named_padding, image, kernel, self.strides, self.kernel_dilation))
        per_axis = (self.padding,) * 2 if isinstance(self.padding, int) else self.padding
        return tuple((p, p) if isinstance(p, int) else tuple(p) for p in per_axis)

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
        sizes = zip(
            image, self.explicit_padding(image, kernel), kernel, self.strides, self.kernel_dilation, strict=True
        )
        return tuple(
            (length + sum(pads) - (taps - 1) * dilation - 1) // stride + 1
            for length, pads, taps, stride, dilation in sizes
        )


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
    """Yield (n, ho, wo, k, channels, dy channel, (y, x) position) for each sample of each offset group."""
    batch, height, width, cin = x.shape
    kh, kw = kernel
    groups = offset.shape[-1] // (2 * kh * kw)
    (top, _), (left, _) = convolution.explicit_padding((height, width), kernel)
    (sh, sw), (dh, dw) = convolution.strides, convolution.kernel_dilation
    for n, ho, wo, g, i, j in np.ndindex(batch, *offset.shape[1:3], groups, kh, kw):
        tap = i * kw + j
        channel = (g * kh * kw + tap) * 2
        dy, dx = map(float, offset[n, ho, wo, channel : channel + 2])
        channels = slice(g * cin // groups, (g + 1) * cin // groups)
        yield n, ho, wo, tap, channels, channel, (ho * sh - top + i * dh + dy, wo * sw - left + j * dw + dx)


def blend(image, channels, position, wraps):
    """(sample, its derivatives in y and in x), each [channels], and the pixels that it reads, with their weights."""
    zero = np.zeros(image.shape[-1])[channels]
    if np.isnan(position).any():
        return zero + np.nan, zero + np.nan, zero + np.nan, []
    if np.isinf(position).any():
        return zero, zero, zero, []
    sample, in_y, in_x, pixels = zero.copy(), zero.copy(), zero.copy(), []
    for row, y_weight, y_slope in axis_corners(position[0], image.shape[0], wraps):
        for column, x_weight, x_slope in axis_corners(position[1], image.shape[1], wraps):
            value = image[row, column, channels]
            sample += y_weight * x_weight * value
            in_y += y_slope * x_weight * value
            in_x += y_weight * x_slope * value
            pixels.append((row, column, y_weight * x_weight))
    return sample, in_y, in_x, pixels


def feature_groups(cin, cout, count):
    """The (input channels, output channels) of each feature group."""
    return [
        (slice(f * cin // count, (f + 1) * cin // count), slice(f * cout // count, (f + 1) * cout // count))
        for f in range(count)
    ]


def deform_conv2d(cotangent, x, offset, weight, bias=None, mask=None, *, convolution):
    """The output y [N, Ho, Wo, Cout], and the gradients of sum(y * cotangent) by the names of the operands."""
    cotangent, x, offset, weight = (np.asarray(array, np.float64) for array in (cotangent, x, offset, weight))
    mask = np.ones((*offset.shape[:3], offset.shape[3] // 2)) if mask is None else np.asarray(mask, np.float64)
    kh, kw, _, cout = weight.shape
    taps = weight.reshape(kh * kw, -1, cout)
    blends = [
        (at, blend(x[at[0]], at[4], position, convolution.wraps))
        for *at, position in samples(x, offset, (kh, kw), convolution)
    ]
    columns = np.zeros((*offset.shape[:3], kh * kw, x.shape[-1]))
    for (n, ho, wo, tap, channels, channel), (sample, *_) in blends:
        columns[n, ho, wo, tap, channels] = sample * mask[n, ho, wo, channel // 2]
    y, in_columns, in_taps = np.zeros((*offset.shape[:3], cout)), np.zeros_like(columns), np.zeros_like(taps)
    for inputs, outputs in feature_groups(x.shape[-1], cout, convolution.feature_group_count):
        y[..., outputs] = np.einsum("nhwkc,kco->nhwo", columns[..., inputs], taps[..., outputs])
        in_columns[..., inputs] = np.einsum("nhwo,kco->nhwkc", cotangent[..., outputs], taps[..., outputs])
        in_taps[..., outputs] = np.einsum("nhwkc,nhwo->kco", columns[..., inputs], cotangent[..., outputs])

    in_x, in_offset, in_mask = np.zeros_like(x), np.zeros_like(offset), np.zeros_like(mask)
    for (n, ho, wo, tap, channels, channel), (sample, in_y, in_x_position, pixels) in blends:
        modulation, in_column = mask[n, ho, wo, channel // 2], in_columns[n, ho, wo, tap, channels]
        in_mask[n, ho, wo, channel // 2] = in_column @ sample
        in_offset[n, ho, wo, channel] = modulation * (in_column @ in_y)
        in_offset[n, ho, wo, channel + 1] = modulation * (in_column @ in_x_position)
        for row, column, corner_weight in pixels:
            in_x[n, row, column, channels] += modulation * corner_weight * in_column
    gradients = {"x": in_x, "offset": in_offset, "weight": in_taps.reshape(weight.shape), "mask": in_mask}
    return y if bias is None else y + bias, gradients | {"bias": cotangent.sum((0, 1, 2))}
