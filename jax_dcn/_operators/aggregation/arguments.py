"""Checks what users pass, and makes the canonical operands of it.

The value is [..., pixels, M, D], with M heads of D channels, locations [..., queries, M, T, 2] and weights
[..., queries, M, T], with T taps. Pixels and queries have one dimension each with a pyramid, and rows and columns with
a window.
"""

import math
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._operators.aggregation.geometry import DCNv3Window, Level, Pyramid, Spec, window_taps
from jax_dcn._primitive import jax_internals
from jax_dcn._primitive.jax_internals import reshape
from jax_dcn._primitive.promotion import kernel_dtypes
from jax_dcn._types import A, Pair, Shaped

MAX_LEVELS, MAX_TAPS = 32, 2**24  # kMaxLevels and kMaxTaps of lib/aggregation/geometry.h


class Operands(NamedTuple, Generic[A]):
    """The canonical operands, as arrays or as their shapes and types."""

    value: A
    locations: A
    weights: A


class CanonicalCall(NamedTuple):
    operands: Operands[jax.Array]
    spec: Spec


def canonicalize_attention(
    value: ArrayLike,
    sampling_locations: ArrayLike,
    attention_weights: ArrayLike,
    *,
    spatial_shapes: Sequence[Sequence[int]],
    points: Sequence[int] | None = None,
    method: str = "bilinear",
) -> CanonicalCall:
    _validation.choice("method", method, ("bilinear", "discrete"))
    value = _validation.array("value", value)
    locations = _validation.coordinates("sampling_locations", sampling_locations)
    weights = _validation.array("attention_weights", attention_weights)
    sizes = level_sizes(spatial_shapes)
    _validation.rank("value", value, 3, "[..., S, M, D]", least=True)
    layout, dims = ("L, P", 2) if points is None else ("sum(points)", 1)
    shown = f"for value of shape {value.shape}"
    _validation.rank("sampling_locations", locations, value.ndim + dims, f"[..., Q, M, {layout}, 2] {shown}")
    _validation.rank("attention_weights", weights, value.ndim + dims - 1, f"[..., Q, M, {layout}] {shown}")
    counts = (locations.shape[-2],) * len(sizes) if points is None else _points(points, len(sizes))
    spec = Pyramid(tuple(Level(*size, count) for size, count in zip(sizes, counts, strict=True)), method == "discrete")
    if spec.taps > MAX_TAPS:
        raise ValueError(f"a query and head must have at most {MAX_TAPS} taps, got {spec.taps}")
    taps = (len(sizes), counts[0]) if points is None else (spec.taps,)
    *leading, pixels, heads, _ = value.shape
    queries = locations.shape[len(leading)]
    if pixels != spec.pixels:
        raise ValueError(
            f"value must have the {spec.pixels} pixels of spatial_shapes={sizes} in its dimension S, got shape "
            f"{value.shape}"
        )
    expected = (*leading, queries, heads, *taps)
    if locations.shape != (*expected, 2):
        raise ValueError(
            f"sampling_locations must have shape {_shown(*expected, 2)} {shown} and {len(sizes)} levels in "
            f"spatial_shapes, got {locations.shape}"
        )
    if weights.shape != expected:
        raise ValueError(
            f"attention_weights must have shape {_shown(*expected)}, that of sampling_locations without the last "
            f"dimension, got {weights.shape}"
        )
    flat = (*leading, queries, heads, spec.taps)
    return _canonical_call(value, reshape(locations, (*flat, 2)), reshape(weights, flat), spec)


def canonicalize_dcnv3(
    x: ArrayLike,
    offset: ArrayLike,
    mask: ArrayLike,
    *,
    kernel_size: Pair,
    strides: Pair = 1,
    padding: Any,
    kernel_dilation: Pair = 1,
    groups: int,
    offset_scale: Any = 1.0,
    remove_center: bool = False,
) -> CanonicalCall:
    x = _validation.array("x", x)
    offset = _validation.array("offset", offset)
    mask = _validation.array("mask", mask)
    _validation.rank("x", x, 3, "[..., H, W, C]", least=True)
    for name, array, per_pixel in (("offset", offset, "G·K·2"), ("mask", mask, "G·K")):
        _validation.rank(
            name, array, x.ndim, f"[..., Ho, Wo, {per_pixel}] and as many dimensions as x of shape {x.shape}"
        )
    spec = dcnv3_window(
        x.shape[-3:-1],
        kernel_size=kernel_size,
        strides=strides,
        padding=padding,
        kernel_dilation=kernel_dilation,
        offset_scale=offset_scale,
        remove_center=remove_center,
    )
    groups = _validation.positive("groups", groups)
    *leading, height, width, channels = x.shape
    if channels % groups:
        raise ValueError(f"x's channels must be divisible by groups={groups}, got {channels}")
    known = isinstance(height, int) and isinstance(width, int)  # an exported function may have symbolic sizes
    if known and height * width >= 2**31 - height - width - 1:
        raise ValueError(f"x must have fewer than 2**31 pixels an image, got shape {x.shape}")
    rows, columns = spec.output_size((height, width))
    for name, array, width_of_tap in (("offset", offset, 2), ("mask", mask, 1)):
        expected = (*leading, rows, columns, groups * spec.taps * width_of_tap)
        if array.shape != expected:
            raise ValueError(
                f"{name} must have shape {_shown(*expected)} for x of shape {x.shape}, groups={groups} and "
                f"{spec.taps} taps, got {array.shape}"
            )
    return _canonical_call(
        reshape(x, (*leading, height, width, groups, channels // groups)),
        reshape(offset, (*leading, rows, columns, groups, spec.taps, 2)),
        reshape(mask, (*leading, rows, columns, groups, spec.taps)),
        spec,
    )


def dcnv3_window(
    image_size: Sequence[int],
    *,
    kernel_size: Pair,
    strides: Pair,
    padding: Any,
    kernel_dilation: Pair,
    offset_scale: Any,
    remove_center: bool,
) -> DCNv3Window:
    """The window that a user's arguments mean."""
    kernel_size = _validation.pair("kernel_size", kernel_size)
    strides = _validation.pair("strides", strides)
    kernel_dilation = _validation.pair("kernel_dilation", kernel_dilation)
    if isinstance(padding, str):
        raise ValueError(f"padding must be an int, a pair of ints or ((top, bottom), (left, right)), got {padding!r}")
    (vertical, horizontal), _ = _validation.padding(padding, image_size, kernel_size, strides, kernel_dilation)
    _validation.choice("remove_center", remove_center, (True, False))
    if window_taps(kernel_size, remove_center) < 1:
        raise ValueError(f"kernel_size must leave a tap when remove_center=True, got {kernel_size}")
    if kernel_size[0] * kernel_size[1] > MAX_TAPS:
        raise ValueError(f"kernel_size must have at most {MAX_TAPS} taps, got {kernel_size}")
    scale = _validation.number("offset_scale", offset_scale)
    return DCNv3Window(kernel_size, strides, (vertical, horizontal), kernel_dilation, scale, remove_center)


def check_operands(operands: Operands[Shaped], spec: Spec) -> None:
    """Raises ValueError unless the canonical operands fit."""
    value, locations, weights = operands
    dims = spec.image_dims
    *_, heads, _ = value.shape
    if isinstance(spec, Pyramid) and value.shape[-3] != spec.pixels:
        raise ValueError(f"value must have {spec.pixels} pixels, got shape {value.shape}")
    expected = (*value.shape[: -dims - 2], *locations.shape[-dims - 3 : -3], heads, spec.taps)
    if locations.shape != (*expected, 2) or weights.shape != expected:
        raise ValueError(
            f"locations and weights must have shapes {_shown(*expected, 2)} and {_shown(*expected)} for value of shape "
            f"{value.shape}, got {locations.shape} and {weights.shape}"
        )
    samples = math.prod(locations.shape[-dims - 3 : -3]) * spec.taps
    if isinstance(samples, int) and samples >= 2**31:
        raise ValueError(f"a head must take fewer than 2**31 samples of an example, got {samples}")


def _canonical_call(value: jax.Array, locations: jax.Array, weights: jax.Array, spec: Spec) -> CanonicalCall:
    data_dtype, wide = kernel_dtypes(value.dtype, locations.dtype, weights.dtype)
    check_operands(Operands(value, locations, weights), spec)
    operands = (value.astype(data_dtype), locations.astype(wide), weights.astype(wide))
    return CanonicalCall(Operands(*jax_internals.vary_alike(operands)), spec)


def level_sizes(value: Any) -> tuple[tuple[int, int], ...]:
    """The (height, width) of each level, known while tracing."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
        raise TypeError(
            "spatial_shapes must be numbers that are known when the function is traced: close over them, mark them as "
            f"static, or give them to the layer as its attribute; got {value!r}"
        )
    wrong = ValueError(f"spatial_shapes must be a sequence of (height, width), a pair for each level, got {value!r}")
    value = _as_list(value)
    rows = [_as_list(row) for row in value] if isinstance(value, Sequence) else []
    if not rows or not all(isinstance(row, Sequence) and len(row) == 2 for row in rows):
        raise wrong
    if len(rows) > MAX_LEVELS:
        raise ValueError(f"spatial_shapes must have at most {MAX_LEVELS} levels, got {len(rows)}")
    sizes = tuple(_validation.pair(f"spatial_shapes[{k}]", tuple(row)) for k, row in enumerate(rows))
    cells = sum((height + 1) * (width + 1) for height, width in sizes)
    if cells >= 2**31:
        raise ValueError(f"spatial_shapes must have fewer than 2**31 pixels together, got {sizes}")
    return sizes


def _points(value: Any, levels: int) -> tuple[int, ...]:
    """The number of points on each level."""
    counts = _as_list(value)
    if not isinstance(counts, Sequence) or isinstance(counts, str) or len(counts) != levels:
        raise ValueError(f"points must have one positive int for each of the {levels} levels, got {value!r}")
    return tuple(_validation.positive(f"points[{k}]", count) for k, count in enumerate(counts))


def _as_list(value: Any) -> Any:
    """An array as a list; anything else as it is."""
    return np.asarray(value).tolist() if isinstance(value, np.ndarray | jax.Array) else value


def _shown(*shape: object) -> str:
    return f"({', '.join(map(str, shape))})"
