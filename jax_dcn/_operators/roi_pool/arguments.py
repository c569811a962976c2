"""Checks what users pass, and makes the canonical operands of it: channels last, and of types that kernels take."""

import math
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._primitive import jax_internals
from jax_dcn._primitive.promotion import kernel_dtypes
from jax_dcn._types import A, Pair, Shaped

# Where the sample points of a bin lie, in the order of the enumeration of lib/roi_pool/geometry.h, which defines them.
CONVENTIONS = ("rounded", "aligned", "unaligned")


@dataclass(frozen=True)
class Spec:
    """The static parameters of a pooling; sizes are (rows, columns).

    points: sample points per bin; 0 for an adaptive number, one per pixel of the bin, rounded up.
    """

    output_size: tuple[int, int]
    spatial_scale: float
    group_size: tuple[int, int]
    part_size: tuple[int, int]
    points: tuple[int, int]
    trans_std: float
    convention: Literal["rounded", "aligned", "unaligned"] = "rounded"


class Operands(NamedTuple, Generic[A]):
    """The canonical operands, as arrays or as their shapes and types."""

    x: A
    rois: A
    offset: A | None  # max pooling takes none


def psroi_spec(
    *,
    output_size: Pair,
    spatial_scale: Any,
    group_size: Pair,
    part_size: Pair | None,
    sample_per_part: Pair,
    trans_std: Any,
) -> Spec:
    """What the arguments of `deform_psroi_pool` mean."""
    bins = _validation.pair("output_size", output_size)
    return Spec(
        output_size=bins,
        spatial_scale=_validation.scale("spatial_scale", spatial_scale),
        group_size=_validation.pair("group_size", group_size),
        part_size=bins if part_size is None else _validation.pair("part_size", part_size),
        points=_validation.pair("sample_per_part", sample_per_part),
        trans_std=_validation.number("trans_std", trans_std),
    )


def align_spec(
    output_size: Pair,
    spatial_scale: Any,
    sampling_ratio: Pair,
    *,
    position_sensitive: bool = False,
    aligned: bool = True,
    gamma: Any = 0.0,
) -> Spec:
    """What the arguments of `roi_align`, `ps_roi_align` and `deform_roi_pool` mean."""
    bins = _validation.pair("output_size", output_size)
    return Spec(
        output_size=bins,
        spatial_scale=_validation.scale("spatial_scale", spatial_scale),
        group_size=bins if position_sensitive else (1, 1),
        part_size=bins,
        points=_validation.pair("sampling_ratio", sampling_ratio, least=0),
        trans_std=_validation.number("gamma", gamma),
        convention="aligned" if aligned else "unaligned",
    )


def canonicalize(
    x: ArrayLike,
    rois: ArrayLike,
    offset: ArrayLike | None,
    spec: Spec,
    *,
    classes: int | None = None,
    data_format: str = "NHWC",
    deterministic: bool | None = None,
    backend: str | None = None,
) -> Operands[jax.Array]:
    """The canonical operands. classes: the number of classes that an offset has to be of; None for any number."""
    _validation.choice("data_format", data_format, ("NHWC", "NCHW"))
    _validation.run_options(deterministic, backend)
    first = data_format == "NCHW"
    x = _validation.array("x", x)
    rois = _validation.coordinates("rois", rois)
    offset = None if offset is None else _validation.array("offset", offset)
    _validation.rank("x", x, 4, "[..., N, C, H, W]" if first else "[..., N, H, W, C]", least=True)
    _validation.rank("rois", rois, x.ndim - 2, f"[..., R, 5] for x of shape {x.shape}")
    if offset is not None:
        pairs = "2·classes" if classes is None else 2 * classes
        layout = f"[..., R, {pairs}, part, part]" if first else f"[..., R, part, part, {pairs}]"
        _validation.rank("offset", offset, x.ndim, f"{layout} for x of shape {x.shape}")
    data_dtype, wide = kernel_dtypes(x.dtype, *[array.dtype for array in (rois, offset) if array is not None])
    if first:
        x = jnp.moveaxis(x, -3, -1)
        offset = None if offset is None else jnp.moveaxis(offset, -3, -1)
    check_operands(Operands(x, rois, offset), spec, classes=classes, channels_first=first)
    operands = (
        x.astype(data_dtype),
        jax.lax.stop_gradient(rois.astype(wide)),
        None if offset is None else offset.astype(wide),
    )
    return Operands(*jax_internals.vary_alike(operands))


def check_operands(
    operands: Operands[Shaped], spec: Spec, *, classes: int | None = None, channels_first: bool = False
) -> None:
    """Raises ValueError unless the canonical operands fit; messages give their shapes in the user's layout."""
    x, rois, offset = operands

    def shown(*shape: object) -> str:
        order = (*shape[:-3], shape[-1], *shape[-3:-1]) if channels_first else shape
        return f"({', '.join(map(str, order))})"

    *batch, _, height, width, channels = x.shape
    groups = math.prod(spec.group_size)
    if channels % groups:
        cells = "group_size" if spec.convention == "rounded" else "output_size"
        raise ValueError(
            f"x's channels must be divisible by the {groups} cells of {cells}={spec.group_size}, got {channels}"
        )
    known = isinstance(height, int) and isinstance(width, int)  # an exported function may have symbolic sizes
    if known and height * width >= 2**31:
        raise ValueError(f"x must have fewer than 2**31 pixels an image, got shape {shown(*x.shape)}")
    if rois.shape[-1] != 5 or rois.shape[:-2] != tuple(batch):
        expected = ", ".join(map(str, (*batch, "R", 5)))
        raise ValueError(f"rois must have shape ({expected}) for x of shape {shown(*x.shape)}, got {rois.shape}")
    if offset is None:
        return
    features, found = channels // groups, offset.shape[-1] // 2
    pairs = "2·classes" if classes is None else 2 * classes
    is_whole = offset.shape[-1] % 2 == 0 and (found >= 1 if classes is None else found == classes)
    if offset.shape[:-1] != (*rois.shape[:-1], *spec.part_size) or not is_whole:
        parts = "part_size" if classes is None else "output_size"
        raise ValueError(
            f"offset must have shape {shown(*rois.shape[:-1], *spec.part_size, pairs)} for rois of shape "
            f"{rois.shape} and {parts}={spec.part_size}, got {shown(*offset.shape)}"
        )
    if features % found:
        raise ValueError(
            f"offset's channels must make a number of classes that divides the {features} features of the result, got "
            f"{found} classes from shape {shown(*offset.shape)}"
        )
