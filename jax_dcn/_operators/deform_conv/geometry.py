"""Where a deformable convolution samples. Arrays may be of numpy or of jax."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from jax_dcn import _validation


@dataclass(frozen=True)
class Geometry:
    """What says, beside the offsets, where samples lie."""

    strides: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    kernel_dilation: tuple[int, int]
    circular: bool

    def output_size(self, image_size, kernel_size):
        parts = zip(image_size, kernel_size, self.strides, self.padding, self.kernel_dilation, strict=True)
        return tuple(max((n + sum(pads) - (k - 1) * d - 1) // s + 1, 0) for n, k, s, pads, d in parts)


def resolve(image_size, kernel_size, *, strides, padding, kernel_dilation):
    """The geometry that a user's arguments mean for an image of this size."""
    strides = _validation.pair("strides", strides)
    kernel_dilation = _validation.pair("kernel_dilation", kernel_dilation)
    pads, circular = _validation.padding(padding, image_size, kernel_size, strides, kernel_dilation)
    return Geometry(strides, pads, kernel_dilation, circular)


def check_offset(offset, image_size, kernel_size, geometry):
    """Raises ValueError unless offset [..., Ho, Wo, G·K·2] fits an image of this size."""
    size, channels = geometry.output_size(image_size, kernel_size), 2 * kernel_size[0] * kernel_size[1]
    shape = tuple(offset.shape)
    if shape[-3:-1] != size or shape[-1] < channels or shape[-1] % channels:
        raise ValueError(
            f"offset must have shape (..., {size[0]}, {size[1]}, G·{channels}) for image_size={tuple(image_size)} and "
            f"a {kernel_size[0]}x{kernel_size[1]} kernel, G the number of offset groups, got {shape}"
        )


def groups_and_taps(offset, kernel_size):
    taps = kernel_size[0] * kernel_size[1]
    return offset.shape[-1] // (2 * taps), taps


def positions(offset, kernel_size, geometry, origin=(0, 0)):
    """Where the output from `origin` on samples: y and x, each [..., Ho, Wo, K, G], of offset [..., Ho, Wo, G·K·2]."""
    groups, taps = groups_and_taps(offset, kernel_size)
    offset = offset.reshape(*offset.shape[:-1], groups, taps, 2).swapaxes(-3, -2)
    grid_y, grid_x = grid(offset.shape[-5:-3], kernel_size, geometry, origin)
    return grid_y + offset[..., 0], grid_x + offset[..., 1]


def grid(output_size, kernel_size, geometry, origin=(0, 0)):
    """Where it would without offsets: y [rows, 1, K, 1] and x [1, columns, K, 1]."""
    tap_y, tap_x = np.divmod(np.arange(kernel_size[0] * kernel_size[1]), kernel_size[1])

    def along(axis, taps):
        length = output_size[axis]
        arange = np.arange if isinstance(length, int) else jnp.arange  # a symbolic length, of an exported function
        first = (origin[axis] + arange(length)) * geometry.strides[axis] - geometry.padding[axis][0]
        return first[:, None] + taps * geometry.kernel_dilation[axis]

    return along(0, tap_y)[:, None, :, None], along(1, tap_x)[None, :, :, None]


def is_inside(position, size, circular):
    """Whether a sample at this position along an axis reads the image."""
    return (abs(position) < np.inf) & (size > 0) if circular else (position > -1) & (position < size)


def reads(y, x, image_size, geometry):
    """Whether samples at these positions read the image."""
    return is_inside(y, image_size[0], geometry.circular) & is_inside(x, image_size[1], geometry.circular)
