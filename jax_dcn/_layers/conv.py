"""The code that the Linen and the NNX `DeformConv` share: checks of their arguments, and the computation."""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax.typing import Dtype, PrecisionLike

from jax_dcn import _validation
from jax_dcn._layers import common
from jax_dcn._operators.deform_conv import deform_conv2d, geometry
from jax_dcn._types import Backend, Padding, Pair

KernelTransform = Callable[[jax.Array], jax.Array]


class Settings(common.Settings, Protocol):
    """The attributes of both layers that control the computation."""

    strides: Pair
    padding: Padding
    kernel_dilation: Pair
    feature_group_count: int
    precision: PrecisionLike
    offset_groups: int
    preferred_element_type: Dtype | None
    offset_bound: float | None
    kernel_transform: KernelTransform | None
    backend: Backend


def check_channels(name: str, channels: int, **groups: int) -> None:
    """Checks a channel count and that each of the named group counts divides it."""
    _validation.positive(name, channels)
    for group_name, count in groups.items():
        if channels % _validation.positive(group_name, count):
            raise ValueError(f"{name} must be a multiple of {group_name}={count}, got {channels}")


def check_offset_bound(offset_bound: float | None) -> None:
    if offset_bound is not None and not (isinstance(offset_bound, Real) and 0 < offset_bound < math.inf):
        raise ValueError(f"offset_bound must be None or a positive finite number of pixels, got {offset_bound!r}")


def channels_of(x: jax.Array) -> int:
    x = _validation.array("x", x)
    if jnp.ndim(x) < 3:
        raise ValueError(f"x must have the shape [..., height, width, channels], got {list(jnp.shape(x))}")
    return int(jnp.shape(x)[-1])


def conv_offset_features(kernel_size: tuple[int, int], offset_groups: int, modulated: bool) -> int:
    """The output channels of the offset convolution: dy, dx and, if modulated, a mask logit for each tap."""
    return common.numbers_per_sample(modulated) * offset_groups * math.prod(kernel_size)


def apply(
    layer: Settings,
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    offset: jax.Array | None,
    mask: jax.Array | None,
    *,
    conv_offset: common.Branch | None,
    promote: Callable[..., Sequence[Any]],
    return_offsets: bool | None,
) -> Any:
    """The output of the layer, with the offset and the mask if they are requested."""
    # Checked before the offset convolution, whose errors would not name the arguments of this layer.
    strides = _validation.pair("strides", layer.strides)
    dilation = _validation.pair("kernel_dilation", layer.kernel_dilation)
    _validation.padding(layer.padding, x.shape[-3:-1], kernel.shape[:2], strides, dilation)
    if offset is None:
        branch = common.check_branch("conv_offset", conv_offset, mask)
        offset, mask = common.offset_and_mask(layer, branch(common.widen(layer, x)))
        if layer.offset_bound is not None:
            offset = layer.offset_bound * jnp.tanh(offset / layer.offset_bound)
    else:
        channels = geometry.offset_channels(kernel.shape[:2], layer.offset_groups)
        common.check_offset(offset, channels, f"tap of offset_groups={layer.offset_groups}")
    if layer.kernel_transform is not None:
        shape = kernel.shape
        kernel = layer.kernel_transform(kernel)
        if kernel.shape != shape:
            raise ValueError(f"kernel_transform must keep the kernel's shape {shape}, got {kernel.shape}")
    x, kernel, bias = promote(x, kernel, bias)
    y = deform_conv2d(
        x,
        offset,
        kernel,
        bias,
        mask,
        strides=strides,
        padding=layer.padding,
        kernel_dilation=dilation,
        feature_group_count=layer.feature_group_count,
        precision=layer.precision,
        preferred_element_type=layer.preferred_element_type,
        backend=layer.backend,
    )
    return common.result(layer, y, offset, mask, return_offsets)
