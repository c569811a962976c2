"""The convolution of all detectors: that of Flax, computed by this package, which on a CPU has faster kernels."""

from typing import Any

import flax.linen as nn
import jax

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
