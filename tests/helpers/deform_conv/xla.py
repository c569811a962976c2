"""Ordinary convolutions by XLA, with the arguments of the package."""

import jax.numpy as jnp
from jax import lax

from .numpy_reference import per_axis


def convolve(
    x, weight, bias=None, strides=1, padding="SAME", kernel_dilation=1, feature_group_count=1, data_format="NHWC"
):
    dims = weight.ndim - 2
    strides, kernel_dilation = per_axis(strides, dims), per_axis(kernel_dilation, dims)
    if padding == "CIRCULAR":  # made by copying the opposite margins
        reach = [(k - 1) * d for k, d in zip(weight.shape, kernel_dilation, strict=False)]
        x = jnp.pad(x, [(0, 0), *[(r // 2, r - r // 2) for r in reach], (0, 0)], mode="wrap")
        padding = "VALID"
    elif not isinstance(padding, str):
        padding = [(p, p) if isinstance(p, int) else p for p in per_axis(padding, dims)]
    space = "DHW"[-dims:]
    numbers = ("NCHW", "OIHW", "NCHW") if data_format == "NCHW" else (f"N{space}C", f"{space}IO", f"N{space}C")
    options = {"rhs_dilation": kernel_dilation, "feature_group_count": feature_group_count}
    y = lax.conv_general_dilated(x, weight, strides, padding, dimension_numbers=numbers, **options)
    if bias is None:
        return y
    return y + (jnp.reshape(bias, (-1, 1, 1)) if data_format == "NCHW" else bias)
