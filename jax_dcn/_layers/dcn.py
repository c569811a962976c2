"""The code that the Linen and the NNX `DCNv3` and `DCNv4` share: checks of their arguments, and the computation."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
from jax.nn.initializers import variance_scaling
from jax.typing import DTypeLike

from jax_dcn import _validation
from jax_dcn._layers import common
from jax_dcn._layers.conv import channels_of, check_channels
from jax_dcn._operators.aggregation import dcnv3
from jax_dcn._operators.aggregation.arguments import BACKENDS, window
from jax_dcn._types import Pair

Activation = Callable[[jax.Array], jax.Array]
Norm = Literal["layer_norm", "batch_norm"]
LAYER_NORM_EPSILON, BATCH_NORM_EPSILON, BATCH_NORM_MOMENTUM = 1e-6, 1e-5, 0.9  # InternImage's
# Flax's default, E[x²] - E[x]², cancels where the mean is large.
NORM_OPTIONS = {"use_fast_variance": False}


class Settings(common.HasDtype, common.ReturnsOffsets, Protocol):
    """The attributes of all these layers that control the computation."""

    groups: int
    kernel_size: Pair
    kernel_dilation: Pair
    offset_scale: float
    remove_center: bool
    dw_kernel_size: Pair | None
    center_feature_scale: bool
    backend: Literal["reference"] | None


class DCNv3Settings(Settings, Protocol):
    """The attributes of `DCNv3`, which also has a norm and an activation."""

    norm: Norm

    @property
    def activation(self) -> Activation: ...


def check(layer: Settings, name: str, channels: int) -> None:
    check_channels(name, channels, groups=layer.groups)
    taps(layer)
    if layer.dw_kernel_size is not None:
        _validation.pair("dw_kernel_size", layer.dw_kernel_size)
    _validation.choice("backend", layer.backend, BACKENDS)
    _validation.choice("center_feature_scale", layer.center_feature_scale, (True, False))
    if layer.dtype is not None:
        _validation.dtype("dtype", layer.dtype)


def check_dcnv3(layer: DCNv3Settings, name: str, channels: int) -> None:
    check(layer, name, channels)
    _validation.choice("norm", layer.norm, ("layer_norm", "batch_norm"))


def check_features(x: jax.Array, features: int) -> None:
    if channels_of(x) != features:
        raise ValueError(f"x must have features={features} channels, got {x.shape[-1]}")


def taps(layer: Settings) -> int:
    """The number of taps of the window."""
    return window((1, 1), strides=1, **_geometry(layer)).taps


def offset_mask_features(layer: Settings) -> int:
    """The output channels of DCNv4's `offset_mask`: 3 for each group and tap, padded to a multiple of 8."""
    return -(-3 * layer.groups * taps(layer) // 8) * 8


def dw_kernel_size(layer: Settings) -> tuple[int, int]:
    """The size of DCNv3's depthwise convolution."""
    return _validation.pair("dw_kernel_size", layer.dw_kernel_size or layer.kernel_size)


def depthwise_initializers(kernel_size: Sequence[int]) -> dict[str, Any]:
    """PyTorch's for a depthwise convolution: kernel and bias are uniform, within one over the root of its taps."""
    bound = 1 / math.sqrt(math.prod(kernel_size))

    def bias_init(key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return {"kernel_init": variance_scaling(1 / 3, "fan_in", "uniform"), "bias_init": bias_init}


def apply_dcnv3(
    layer: DCNv3Settings,
    x: jax.Array,
    *,
    input_proj: common.Branch,
    dw_conv: common.Branch,
    dw_norm: common.Branch,
    offset: common.Branch,
    mask: common.Branch,
    center_feature_scale_proj: common.Branch | None,
    output_proj: common.Branch,
    return_offsets: bool | None,
) -> Any:
    """The output of a `DCNv3`, with the offset and the mask if they are requested."""
    value = input_proj(x)
    features = layer.activation(dw_norm(dw_conv(common.widen(layer, x))))
    offsets, logits = offset(features), mask(features)
    by_group = logits.reshape(*logits.shape[:-1], layer.groups, taps(layer))
    masks = jax.nn.softmax(by_group, -1).reshape(logits.shape)
    y = _aggregate(layer, value, offsets, masks)
    if center_feature_scale_proj is not None:
        y = _blend(y, value, center_feature_scale_proj(features))
    return common.result(layer, output_proj(y), offsets, masks, return_offsets)


def apply_dcnv4(
    layer: Settings,
    x: jax.Array,
    *,
    value_proj: common.Branch | None,
    offset_mask_dw: common.Branch | None,
    offset_mask: common.Branch,
    center_feature_scale_proj: common.Branch | None,
    output_proj: common.Branch | None,
    return_offsets: bool | None,
) -> Any:
    """The output of a `DCNv4`, with the offset and the mask if they are requested."""
    features = common.widen(layer, x)
    if offset_mask_dw is not None:
        features = offset_mask_dw(features)
    offsets, masks = _offset_and_mask(layer, offset_mask(features))
    if value_proj is not None:
        x = value_proj(x)
    elif layer.dtype is not None:
        x = x.astype(layer.dtype)
    y = _aggregate(layer, x, offsets, masks)
    if center_feature_scale_proj is not None:
        y = _blend(y, x, center_feature_scale_proj(common.widen(layer, y)))
    if output_proj is not None:
        y = output_proj(y)
    return common.result(layer, y, offsets, masks, return_offsets)


def _geometry(layer: Settings) -> dict[str, Any]:
    """The window, padded such that the result has the size of x."""
    kernel_size = _validation.pair("kernel_size", layer.kernel_size)
    dilation = _validation.pair("kernel_dilation", layer.kernel_dilation)
    reach = [d * (k - 1) for k, d in zip(kernel_size, dilation, strict=True)]
    return {
        "kernel_size": kernel_size,
        "kernel_dilation": dilation,
        "padding": tuple((n // 2, n - n // 2) for n in reach),
        "offset_scale": layer.offset_scale,
        "remove_center": layer.remove_center,
    }


def _aggregate(layer: Settings, value: jax.Array, offset: jax.Array, mask: jax.Array) -> jax.Array:
    return dcnv3(value, offset, mask, groups=layer.groups, backend=layer.backend, **_geometry(layer))


def _offset_and_mask(layer: Settings, packed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Splits what DCNv4 predicts: for each group first all coordinates, then all masks; padding at the end."""
    count = taps(layer)
    samples = layer.groups * count
    *leading, _ = packed.shape
    by_group = packed[..., : 3 * samples].reshape(*leading, layer.groups, 3 * count)
    offset, mask = jnp.split(by_group, [2 * count], axis=-1)
    return offset.reshape(*leading, 2 * samples), mask.reshape(*leading, samples)


def _blend(y: jax.Array, value: jax.Array, logits: jax.Array) -> jax.Array:
    """The centre feature scale: blends the result with the value, with one weight for each group [..., G]."""
    weight = jax.nn.sigmoid(logits)[..., None]
    by_group = (*logits.shape, y.shape[-1] // logits.shape[-1])
    blended = y.reshape(by_group) * (1 - weight) + value.reshape(by_group) * weight
    return blended.reshape(y.shape).astype(y.dtype)
