"""The convolution of all detectors: that of Flax, computed by this package, which on a CPU has faster kernels."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype

import jax_dcn


def convolve(
    x: jax.Array,
    kernel: jax.Array,
    strides: tuple[int, ...],
    padding: Any,
    *,
    lhs_dilation: tuple[int, ...],
    rhs_dilation: tuple[int, ...],
    dimension_numbers: Any,
    feature_group_count: int,
    precision: Any,
) -> jax.Array:
    """`jax.lax.conv_general_dilated` as `flax.linen.Conv` calls it for images: always with channels last."""
    if any(spread != 1 for spread in lhs_dilation):
        raise ValueError(f"input_dilation must be 1, got {lhs_dilation}")
    return jax_dcn.deform_conv2d(
        x,
        None,
        kernel,
        strides=strides,
        padding=padding,
        kernel_dilation=rhs_dilation,
        feature_group_count=feature_group_count,
        precision=precision,
    )


class Conv(nn.Conv):
    """`flax.linen.Conv` of images, with the same parameters."""

    conv_general_dilated_cls: Any = lambda: convolve


def square(features: int, size: int, stride: int = 1, **options: Any) -> Conv:
    """A convolution with a square kernel; with an odd one and a stride of 1, an image keeps its size."""
    return Conv(features, (size, size), strides=stride, padding=(size - 1) // 2, **options)


class Doubled(nn.Module):
    """A transposed convolution of size and stride 2: the window [..., 2, 2, features] of each pixel [..., channels].

    Windows do not overlap, so it is a matrix product. The layout of the weight is that of a convolution in the other
    direction. `from_windows` makes images of windows.
    """

    features: int
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        initializer = nn.initializers.he_normal(in_axis=-1, out_axis=-2)
        kernel = self.param("kernel", initializer, (2, 2, self.features, x.shape[-1]))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        windows = x @ kernel.reshape(-1, x.shape[-1]).T + jnp.tile(bias, 4)
        return windows.reshape(*x.shape[:-1], 2, 2, self.features)


def from_windows(windows: jax.Array) -> jax.Array:
    """Images [batch, 2 * height, 2 * width, ...] of windows [batch, height, width, 2, 2, ...]."""
    batch, height, width, *_ = windows.shape
    return windows.swapaxes(2, 3).reshape(batch, 2 * height, 2 * width, *windows.shape[5:])
