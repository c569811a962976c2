"""Checks what users pass, and makes the canonical operands of it: channels last, and of types that kernels take."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from jax_dcn import _validation
from jax_dcn._operators.deform_conv.geometry import (
    Window,
    fits,
    groups_and_taps,
    kernel_shown,
    offset_channels,
    resolve,
)
from jax_dcn._primitive import jax_internals
from jax_dcn._primitive.promotion import kernel_dtypes
from jax_dcn._types import A, Backend, Padding, Shaped, Sizes


@dataclass(frozen=True)
class Spec(Window):
    """The static parameters of a deformable convolution, resolved."""

    feature_group_count: int
    precision: Any
    dtype: Any  # of the result
    path: Literal["fused", "im2col"] | None  # that was requested

    def in_one_column(self) -> "Spec":
        """The parameters of a convolution of signals for images of one column."""
        strides, padding, dilation = (*self.strides, 1), (*self.padding, (0, 0)), (*self.kernel_dilation, 1)
        return replace(self, strides=strides, padding=padding, kernel_dilation=dilation)


# By the number of axes of the image: the data formats, channels last and first, and how messages call the axes.
FORMATS = {1: ("NWC", "NCW"), 2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}
_MASK_CHANNELS = {
    1: "as many channels as offset",
    2: "half the channels of offset",
    3: "a third of the channels of offset",
}
_IMAGE, _OUTPUT, _KERNEL = "DHW", ("Do", "Ho", "Wo"), ("kd", "kh", "kw")


class Operands(NamedTuple, Generic[A]):
    """The canonical operands, as arrays or as their shapes and types."""

    x: A
    offset: A
    weight: A
    bias: A | None
    mask: A | None


class GridOperands(NamedTuple, Generic[A]):
    """The canonical operands of an ordinary convolution: no offset moves its samples from the grid."""

    x: A
    weight: A
    bias: A | None


def canonicalize(
    dims: int,
    x: ArrayLike,
    offset: ArrayLike | None,
    weight: ArrayLike,
    bias: ArrayLike | None,
    mask: ArrayLike | None,
    *,
    strides: Sizes = 1,
    padding: Padding = "SAME",
    kernel_dilation: Sizes = 1,
    feature_group_count: int = 1,
    data_format: str | None = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    deterministic: bool | None = None,
    backend: Backend = None,
) -> tuple[Operands[jax.Array] | GridOperands[jax.Array], Spec]:
    """The canonical operands and the parameters of a convolution of images of `dims` axes."""
    formats = FORMATS[dims]
    data_format = formats[0] if data_format is None else data_format
    _validation.choice("data_format", data_format, formats)
    _validation.run_options(deterministic, backend, (None, "fused", "im2col", "reference"))
    first = data_format == formats[1]
    x = _validation.array("x", x)
    offset = None if offset is None else _validation.array("offset", offset)
    weight = _validation.array("weight", weight)
    bias = None if bias is None else _validation.array("bias", bias)
    mask = None if mask is None else _validation.array("mask", mask)
    image, output, kernel = (", ".join(names[-dims:]) for names in (_IMAGE, _OUTPUT, _KERNEL))
    _validation.rank("x", x, dims + 1, f"[..., Cin, {image}]" if first else f"[..., {image}, Cin]", least=True)
    shape = f"[Cout, Cin/groups, {kernel}]" if first else f"[{kernel}, Cin/groups, Cout]"
    _validation.rank("weight", weight, dims + 2, shape)
    for name, array, per_sample in (("offset", offset, f"G·K·{dims}"), ("mask", mask, "G·K")):
        if array is not None:
            axes = f"{per_sample}, {output}" if first else f"{output}, {per_sample}"
            _validation.rank(name, array, x.ndim, f"[..., {axes}] and as many dimensions as x of shape {x.shape}")
    if bias is not None:
        _validation.rank("bias", bias, 1, "[Cout]")
    if offset is None and mask is not None:
        raise ValueError(f"mask must be None where offset is, got a mask of shape {mask.shape}")
    if offset is None and backend == "im2col":
        raise ValueError("backend must be None, 'fused' or 'reference' where offset is None, got 'im2col'")

    dtype = jnp.promote_types(x.dtype, weight.dtype)
    positions = [array.dtype for array in (offset, mask) if array is not None]
    data_dtype, wide = kernel_dtypes(dtype, *positions)
    if first:
        x = channels_last(x, dims)
        offset = None if offset is None else channels_last(offset, dims)
        mask = None if mask is None else channels_last(mask, dims)
        weight = jnp.moveaxis(weight, (1, 0), (-2, -1))
    window = resolve(
        x.shape[-dims - 1 : -1], weight.shape[:dims], strides=strides, padding=padding, kernel_dilation=kernel_dilation
    )
    spec = Spec(
        window.strides,
        window.padding,
        window.kernel_dilation,
        window.circular,
        feature_group_count=_validation.positive("feature_group_count", feature_group_count),
        precision=_validation.precision(precision),
        dtype=dtype
        if preferred_element_type is None
        else _validation.dtype("preferred_element_type", preferred_element_type),
        path=backend if backend in ("fused", "im2col") else None,
    )
    bias = None if bias is None else bias.astype(wide)
    if offset is None:
        check_grid_operands(GridOperands(x, weight, bias), spec, channels_first=first)
        on_grid = x.astype(data_dtype), weight.astype(data_dtype), bias
        return GridOperands(*jax_internals.vary_alike(on_grid)), spec
    check_operands(Operands(x, offset, weight, bias, mask), spec, channels_first=first)
    operands = (
        x.astype(data_dtype),
        offset.astype(wide),
        weight.astype(data_dtype),
        bias,
        None if mask is None else mask.astype(wide),
    )
    return Operands(*jax_internals.vary_alike(operands)), spec


def check_grid_operands(operands: GridOperands[Shaped], spec: Spec, *, channels_first: bool = False) -> None:
    """Raises ValueError unless the canonical operands fit; messages give their shapes in the user's layout."""
    x, weight, bias = operands
    dims, shown = spec.dims, partial(_shown, spec=spec, channels_first=channels_first)

    def shown_weight(shape: tuple[int, ...]) -> str:
        return str((shape[-1], shape[-2], *shape[:-2]) if channels_first else tuple(shape))

    image_size, channels = x.shape[-dims - 1 : -1], x.shape[-1]
    *kernel_size, group_channels, features = weight.shape
    taps, groups = math.prod(kernel_size), spec.feature_group_count
    if taps < 1:
        raise ValueError(f"weight must have a kernel of one tap or more, got shape {shown_weight(weight.shape)}")
    if group_channels * groups != channels:
        raise ValueError(
            f"weight must have Cin/groups = {channels}/{groups} input channels for x of shape {shown(*x.shape)} and "
            f"feature_group_count={groups}, got shape {shown_weight(weight.shape)}"
        )
    if features % groups:
        raise ValueError(f"weight's output channels must be divisible by feature_group_count={groups}, got {features}")
    known = all(isinstance(size, int) for size in image_size)  # an exported function may have symbolic sizes
    if known and math.prod(size + 1 for size in image_size) >= 2**31:  # with a border, by which kernels sort samples
        raise ValueError(f"x must have fewer than 2**31 pixels an image, got shape {shown(*x.shape)}")
    if bias is not None and bias.shape != (features,):
        raise ValueError(f"bias must have shape ({features},), one value for each output channel, got {bias.shape}")


def check_operands(operands: Operands[Shaped], spec: Spec, *, channels_first: bool = False) -> None:
    """As `check_grid_operands`, for the operands of a deformable convolution."""
    x, offset, weight, bias, mask = operands
    check_grid_operands(GridOperands(x, weight, bias), spec, channels_first=channels_first)
    dims, shown = spec.dims, partial(_shown, spec=spec, channels_first=channels_first)
    batch, image_size, channels = x.shape[: -dims - 1], x.shape[-dims - 1 : -1], x.shape[-1]
    kernel_size = weight.shape[:-2]
    size = spec.output_size(image_size, kernel_size)
    if tuple(offset.shape[: -dims - 1]) != tuple(batch) or not fits(offset, size, kernel_size):
        raise ValueError(
            f"offset must have shape {shown(*batch, *size, f'G·{offset_channels(kernel_size)}')} for x of shape "
            f"{shown(*x.shape)} and {kernel_shown(kernel_size)} kernel, G the number of offset groups, got "
            f"{shown(*offset.shape)}"
        )
    offset_groups, taps = groups_and_taps(offset, kernel_size)
    if channels % offset_groups:
        raise ValueError(
            f"offset's channels must make a number of offset groups that divides x's {channels} channels, got "
            f"{offset_groups} groups from shape {shown(*offset.shape)}"
        )
    if mask is not None and mask.shape != (*offset.shape[:-1], offset_groups * taps):
        raise ValueError(
            f"mask must have shape {shown(*offset.shape[:-1], offset_groups * taps)}, {_MASK_CHANNELS[dims]}, got "
            f"{shown(*mask.shape)}"
        )


def _shown(*shape: object, spec: Spec, channels_first: bool) -> str:
    """The shape of an array in the user's layout."""
    dims = spec.dims
    order = (*shape[: -dims - 1], shape[-1], *shape[-dims - 1 : -1]) if channels_first else shape
    return f"({', '.join(map(str, order))}{',' if len(order) == 1 else ''})"


def channels_last(array: jax.Array, dims: int) -> jax.Array:
    return jnp.moveaxis(array, -dims - 1, -1)


def channels_first(array: jax.Array, dims: int) -> jax.Array:
    return jnp.moveaxis(array, -1, -dims - 1)


def in_one_column(operands: Operands[jax.Array], spec: Spec) -> tuple[Operands[jax.Array], Spec]:
    """A convolution of signals as one of images of one column, whose offsets have a horizontal coordinate of zero."""
    x, offset, weight, bias, mask = operands
    of_images = Operands(
        jnp.expand_dims(x, -2),
        jnp.expand_dims(
            jnp.stack([offset, jnp.zeros_like(offset)], -1).reshape(*offset.shape[:-1], 2 * offset.shape[-1]), -2
        ),
        jnp.expand_dims(weight, -3),
        bias,
        None if mask is None else jnp.expand_dims(mask, -2),
    )
    return of_images, spec.in_one_column()
