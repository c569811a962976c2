"""Checks what users pass, and makes the canonical operands of it: channels last, and of types that kernels take."""

from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from jax_dcn import _validation
from jax_dcn._operators.deform_conv.geometry import Window, fits, groups_and_taps, offset_channels, resolve
from jax_dcn._primitive import jax_internals
from jax_dcn._primitive.promotion import sum_dtype
from jax_dcn._types import Backend, Padding, Pair, Shaped


@dataclass(frozen=True)
class Spec(Window):
    """The static parameters of a deformable convolution, resolved."""

    feature_group_count: int
    precision: Any
    dtype: Any  # of the result
    path: Literal["fused", "im2col"] | None  # that was requested


A = TypeVar("A", covariant=True)


class Operands(NamedTuple, Generic[A]):
    """The canonical operands, as arrays or as their shapes and types."""

    x: A
    offset: A
    weight: A
    bias: A | None
    mask: A | None


class Problem(NamedTuple):
    operands: Operands[jax.Array]
    spec: Spec


def canonicalize(
    x: ArrayLike,
    offset: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None,
    mask: ArrayLike | None,
    *,
    strides: Pair = 1,
    padding: Padding = "SAME",
    kernel_dilation: Pair = 1,
    feature_group_count: int = 1,
    data_format: str = "NHWC",
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    deterministic: bool | None = None,
    backend: Backend = None,
) -> Problem:
    _validation.choice("data_format", data_format, ("NHWC", "NCHW"))
    _validation.choice("deterministic", deterministic, (None, True, False))
    _validation.choice("backend", backend, (None, "fused", "im2col", "reference"))
    first = data_format == "NCHW"
    x = _validation.array("x", x)
    offset = _validation.array("offset", offset)
    weight = _validation.array("weight", weight)
    bias = None if bias is None else _validation.array("bias", bias)
    mask = None if mask is None else _validation.array("mask", mask)
    _validation.rank("x", x, 3, "[..., Cin, H, W]" if first else "[..., H, W, Cin]", least=True)
    _validation.rank("weight", weight, 4, "[Cout, Cin/groups, kh, kw]" if first else "[kh, kw, Cin/groups, Cout]")
    for name, array, per_sample in (("offset", offset, "G·K·2"), ("mask", mask, "G·K")):
        if array is not None:
            axes = f"{per_sample}, Ho, Wo" if first else f"Ho, Wo, {per_sample}"
            _validation.rank(name, array, x.ndim, f"[..., {axes}] and as many dimensions as x of shape {x.shape}")
    if bias is not None:
        _validation.rank("bias", bias, 1, "[Cout]")

    dtype = jnp.promote_types(x.dtype, weight.dtype)
    positions = [array.dtype for array in (offset, mask) if array is not None]
    wide = sum_dtype(dtype, *positions)
    # The kernels take positions of float64 only for data of float64.
    data_dtype = wide if wide == jnp.float64 else dtype
    if first:
        x, offset = channels_last(x), channels_last(offset)
        mask = None if mask is None else channels_last(mask)
        weight = jnp.transpose(weight, (2, 3, 1, 0))
    window = resolve(
        x.shape[-3:-1], weight.shape[:2], strides=strides, padding=padding, kernel_dilation=kernel_dilation
    )
    spec = Spec(
        **vars(window),
        feature_group_count=_validation.positive("feature_group_count", feature_group_count),
        precision=_validation.precision(precision),
        dtype=dtype
        if preferred_element_type is None
        else _validation.dtype("preferred_element_type", preferred_element_type),
        path=backend if backend in ("fused", "im2col") else None,
    )
    check_operands(Operands(x, offset, weight, bias, mask), spec, channels_first=first)
    operands = (
        x.astype(data_dtype),
        offset.astype(wide),
        weight.astype(data_dtype),
        None if bias is None else bias.astype(wide),
        None if mask is None else mask.astype(wide),
    )
    return Problem(Operands(*jax_internals.vary_alike(operands)), spec)


def check_operands(operands: Operands[Shaped], spec: Spec, *, channels_first: bool = False) -> None:
    """Raises ValueError unless the canonical operands fit; messages give their shapes in the user's layout."""
    x, offset, weight, bias, mask = operands

    def shown(*shape: object) -> str:
        order = (*shape[:-3], shape[-1], *shape[-3:-1]) if channels_first else shape
        return f"({', '.join(map(str, order))}{',' if len(order) == 1 else ''})"

    def shown_weight(shape: tuple[int, ...]) -> str:
        return str(tuple(shape[k] for k in (3, 2, 0, 1)) if channels_first else tuple(shape))

    *batch, height, width, channels = x.shape
    kernel_size, features = weight.shape[:2], weight.shape[3]
    taps, groups = kernel_size[0] * kernel_size[1], spec.feature_group_count
    if taps < 1:
        raise ValueError(f"weight must have a kernel of one tap or more, got shape {shown_weight(weight.shape)}")
    if weight.shape[2] * groups != channels:
        raise ValueError(
            f"weight must have Cin/groups = {channels}/{groups} input channels for x of shape {shown(*x.shape)} and "
            f"feature_group_count={groups}, got shape {shown_weight(weight.shape)}"
        )
    if features % groups:
        raise ValueError(f"weight's output channels must be divisible by feature_group_count={groups}, got {features}")
    known = isinstance(height, int) and isinstance(width, int)  # an exported function may have symbolic sizes
    if known and height * width >= 2**31 - height - width - 1:
        raise ValueError(f"x must have fewer than 2**31 pixels an image, got shape {shown(*x.shape)}")
    size = spec.output_size((height, width), kernel_size)
    if tuple(offset.shape[:-3]) != tuple(batch) or not fits(offset, size, kernel_size):
        raise ValueError(
            f"offset must have shape {shown(*batch, *size, f'G·{offset_channels(kernel_size)}')} for x of shape "
            f"{shown(*x.shape)} and a {kernel_size[0]}x{kernel_size[1]} kernel, G the number of offset groups, got "
            f"{shown(*offset.shape)}"
        )
    offset_groups, _ = groups_and_taps(offset, kernel_size)
    if channels % offset_groups:
        raise ValueError(
            f"offset's channels must make a number of offset groups that divides x's {channels} channels, got "
            f"{offset_groups} groups from shape {shown(*offset.shape)}"
        )
    if mask is not None and mask.shape != (*offset.shape[:-1], offset_groups * taps):
        raise ValueError(
            f"mask must have shape {shown(*offset.shape[:-1], offset_groups * taps)}, half the channels of offset, "
            f"got {shown(*mask.shape)}"
        )
    if bias is not None and bias.shape != (features,):
        raise ValueError(f"bias must have shape ({features},), one value for each output channel, got {bias.shape}")


def channels_last(array: jax.Array) -> jax.Array:
    return jnp.moveaxis(array, -3, -1)


def channels_first(array: jax.Array) -> jax.Array:
    return jnp.moveaxis(array, -1, -3)
