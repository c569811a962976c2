"""The plain path: custom calls sample columns, XLA multiplies them, one chunk of output rows or of images at a time."""

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jax_dcn._operators.deform_conv import custom_calls, gpu_estimate, paths
from jax_dcn._operators.deform_conv.arguments import Spec
from jax_dcn._operators.deform_conv.custom_calls import Sampling
from jax_dcn._operators.deform_conv.geometry import groups_and_taps
from jax_dcn._primitive.chunks import balanced, filled, fold, read_chunk, write_chunk
from jax_dcn._primitive.target import Target
from jax_dcn._types import Shaped

# Workspace budget per chunk for the columns and their cotangents; the forward, which has columns only, uses half. The
# budget of a CPU keeps a chunk in its caches; a GPU needs large products to be fast.
COLUMN_BYTES = {"cpu": 16 * 2**20, "cuda": 128 * 2**20}
REFERENCE_PART = 16  # of this budget: the columns in derivatives of the reference, which hold up to 25 such arrays

# From what the arrays of results start, which are overwritten. XLA for CPUs, which ignores the barrier of
# `chunks.filled`, would make one array for those that start from equal values, and copy it. Gradients start from 0.
VALUE_FILL, TANGENT_FILL = math.nan, math.inf

Cotangents: TypeAlias = dict[str, jax.Array]
_Start: TypeAlias = tuple[ArrayLike, ArrayLike]  # an image and a row


def forward(
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    *,
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
    target: Target,
    fill: float,
) -> jax.Array:
    def part(start: _Start, size: tuple[int, int]) -> jax.Array:
        sampling = _sampling_at(start, size, origin, offset, mask, weight, spec)
        part = _product(custom_calls.sample(x, sampling), weight, spec)
        return part if bias is None else part + bias

    chunk = _forward_chunk(x, offset, weight, spec, target)
    y = filled(x, (*offset.shape[:3], weight.shape[-1]), spec.dtype, fill)
    return _with_parts(y, chunk, part)


def tangent(
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    mask: jax.Array | None,
    tangents: Mapping[str, jax.Array],
    *,
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
    target: Target,
) -> jax.Array:
    """The tangent of the result, from those of x, offset or mask, and maybe of weight and bias."""
    # One product multiplies the columns' tangents by the weight and the columns by the weight's tangent.
    factors = jnp.stack([weight, tangents["weight"]] if "weight" in tangents else [weight], axis=2)

    def part(start: _Start, size: tuple[int, int]) -> jax.Array:
        sampling = _sampling_at(start, size, origin, offset, mask, weight, spec)
        of_chunk = {
            name: array if name == "x" else read_chunk(array, start, size)
            for name, array in tangents.items()
            if name in ("x", "offset", "mask")
        }
        columns = custom_calls.sample_tangents(x, sampling, of_chunk, columns_requested="weight" in tangents)
        *pixels, taps, parts, channels = columns.shape
        part = _product(columns.reshape(*pixels, taps * parts, channels), factors, spec)
        return part + tangents["bias"] if "bias" in tangents else part

    chunk = _tangent_chunk(tangents, x, offset, weight, target)
    d_y = filled(x, (*offset.shape[:3], weight.shape[-1]), spec.dtype, TANGENT_FILL)
    return _with_parts(d_y, chunk, part)


def cotangents(
    x: jax.Array,
    offset: jax.Array,
    weight: jax.Array,
    mask: jax.Array | None,
    d_y: jax.Array,
    *,
    requested: Collection[str],
    x_dtype: DTypeLike,
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
    target: Target,
) -> Cotangents:
    """Those requested, in the sums' type, but that of x in `x_dtype`. All arrays have one batch dimension."""
    sum_dtype, groups, platform = offset.dtype, spec.feature_group_count, target.platform
    positions = [name for name in ("offset", "mask") if name in requested]
    chunk = _cotangents_chunk(requested, x, offset, weight, x_dtype, spec, target)
    order = _SortOrder.of(x, offset, weight, platform)
    is_in_place = _sums_are_in_place(x_dtype, offset)

    def images_at(image: ArrayLike, count: int, out: Cotangents) -> Cotangents:
        def rows_at(
            row: ArrayLike, height: int, carry: tuple[Cotangents, jax.Array | None]
        ) -> tuple[Cotangents, jax.Array | None]:
            out, d_xs = carry
            out = dict(out)
            sampling = _sampling_at((image, row), (count, height), origin, offset, mask, weight, spec)
            part = read_chunk(d_y, (image, row), (count, height))
            columns = None
            if _needs_columns_cotangent(requested):
                d_columns = _columns_cotangent(part, weight, spec, _column_cotangent_dtype(x, platform))
                if d_xs is not None:
                    size = count * (height * order.row + order.image)
                    d_xs = custom_calls.input_cotangent(sampling, d_columns, d_xs, workspace_size=size)
                if positions:
                    answer = custom_calls.offset_cotangent(
                        x, sampling, d_columns, requested=positions, columns_requested="weight" in requested
                    )
                    columns = answer.pop("columns", None)
                    out |= {name: write_chunk(out[name], d, (image, row)) for name, d in answer.items()}
            if "weight" in requested:
                columns = custom_calls.sample(x, sampling) if columns is None else columns
                out["weight"] += _weight_cotangent(part, columns, groups, spec, platform)
            return out, d_xs

        out = dict(out)
        d_x = out.pop("x", None)
        d_xs = d_x if d_x is None or is_in_place else filled(x, (count, *x.shape[1:]), sum_dtype)
        out, d_xs = fold(rows_at, offset.shape[1], chunk.rows, (out, d_xs))
        if d_x is not None and d_xs is not None:
            out["x"] = d_xs if is_in_place else write_chunk(d_x, d_xs.astype(x_dtype), (image, 0))
        return out

    out = {
        name: filled(d_y, array.shape, dtype)
        for name, array, dtype in (("x", x, x_dtype), ("offset", offset, sum_dtype), ("mask", mask, sum_dtype))
        if name in requested and array is not None
    }
    if "weight" in requested:
        shape = (groups, weight.shape[3] // groups, math.prod(weight.shape[:2]), weight.shape[2])
        out["weight"] = filled(d_y, shape, sum_dtype)
    out = fold(images_at, offset.shape[0], chunk.images, out)
    if "weight" in requested:
        out["weight"] = out["weight"].transpose(2, 3, 0, 1)
    return out


def workspace_bytes(computation: str, x: Shaped, offset: Shaped, weight: Shaped, spec: Spec, target: Target) -> int:
    """The workspace of the forward, or of the cotangent of the operand of that name, computed by itself."""
    if computation == "forward":
        chunk = _forward_chunk(x, offset, weight, spec, target)
    else:
        chunk = _cotangents_chunk([computation], x, offset, weight, x.dtype, spec, target)
    images = min(chunk.images, x.shape[0]) if isinstance(x.shape[0], int) else chunk.images
    rows = min(chunk.rows, offset.shape[1]) if isinstance(offset.shape[1], int) else chunk.rows
    columns = images * rows * _row_elements(x, offset, weight)
    if not _needs_columns_cotangent([computation]):
        return columns * x.dtype.itemsize
    size = columns * _column_cotangent_dtype(x, target.platform).itemsize
    if computation == "x":
        order = _SortOrder.of(x, offset, weight, target.platform)
        size += images * (4 * (rows * order.row + order.image) + _image_sum_bytes(x, offset, x.dtype))
    return size


def _with_parts(y: jax.Array, chunk: "_Chunk", part: Callable[[_Start, tuple[int, int]], jax.Array]) -> jax.Array:
    """`y` with all of its images and rows replaced, a chunk at a time, by `part(start, size)`, which is rounded."""

    def images_at(image: ArrayLike, count: int, y: jax.Array) -> jax.Array:
        def rows_at(row: ArrayLike, height: int, y: jax.Array) -> jax.Array:
            start = (image, row)
            return write_chunk(y, part(start, (count, height)).astype(y.dtype), start)

        return fold(rows_at, y.shape[1], chunk.rows, y)

    return fold(images_at, y.shape[0], chunk.images, y)


def _product(columns: jax.Array, weight: jax.Array, spec: Spec) -> jax.Array:
    """[n, rows, width, K, Cin] by [kh, kw, Cin/groups, Cout]: [n, rows, width, Cout], in the sums' type."""
    *shape, taps, channels = columns.shape
    pixels, groups, features = math.prod(shape), spec.feature_group_count, weight.shape[-1]
    dot = partial(jnp.einsum, precision=spec.precision, preferred_element_type=_sum_dtype(columns.dtype))
    if groups == 1:
        y = dot("pd,do->po", columns.reshape(pixels, taps * channels), weight.reshape(taps * channels, features))
    else:
        y = dot(
            "pkgc,kcgo->pgo",
            columns.reshape(pixels, taps, groups, channels // groups),
            weight.reshape(taps, channels // groups, groups, features // groups),
        )
    return y.reshape(*shape, features)


def _columns_cotangent(d_y: jax.Array, weight: jax.Array, spec: Spec, dtype: DTypeLike) -> jax.Array:
    """[n, rows, width, Cout] by [kh, kw, Cin/groups, Cout]: [n, rows, width, K, Cin], of `dtype`."""
    *pixels, features = d_y.shape
    taps, groups, group_channels = math.prod(weight.shape[:2]), spec.feature_group_count, weight.shape[2]
    # XLA sums in float32 and rounds once, where it writes 16 bits.
    product_dtype = dtype if d_y.dtype == weight.dtype else _sum_dtype(weight.dtype)
    dot = partial(jnp.einsum, precision=spec.precision, preferred_element_type=product_dtype)
    if groups == 1:
        d_columns = dot("...o,do->...d", d_y, weight.reshape(taps * group_channels, features))
    else:
        d_y = d_y.reshape(*pixels, groups, features // groups)
        d_columns = dot("...go,kcgo->...kgc", d_y, weight.reshape(taps, group_channels, groups, features // groups))
    return d_columns.reshape(*pixels, taps, groups * group_channels).astype(dtype)


def _weight_cotangent(d_y: jax.Array, columns: jax.Array, groups: int, spec: Spec, platform: str) -> jax.Array:
    """[n, rows, width, Cout] by [n, rows, width, K, Cin]: [groups, Cout/groups, K, Cin/groups], in the sums' type."""
    pixels, (taps, channels), features = math.prod(d_y.shape[:3]), columns.shape[3:], d_y.shape[-1]
    dot = partial(jnp.einsum, precision=spec.precision, preferred_element_type=_sum_dtype(d_y.dtype))
    if groups == 1:
        d_y = d_y.reshape(pixels, features).T
        if platform == "cpu":
            # XLA's fast products, those of 16 bits among them, do not take a transposed first operand. The barrier
            # makes XLA store the transposed array.
            d_y = lax.optimization_barrier(d_y.reshape(-1)).reshape(features, pixels)
        d_weight = dot("op,pd->od", d_y, columns.reshape(pixels, taps * channels))
    else:
        columns = columns.reshape(pixels, taps, groups, channels // groups)
        d_weight = dot("pkgc,pgo->gokc", columns, d_y.reshape(pixels, groups, features // groups))
    return d_weight.reshape(groups, features // groups, taps, channels // groups)


def _sum_dtype(dtype: DTypeLike) -> Any:
    return jnp.promote_types(dtype, jnp.float32)


def _column_cotangent_dtype(x: Shaped, platform: str) -> Any:
    """As the handlers have it: Device::kRoundsColumnCotangents in lib/cpu/device.h and lib/cuda/device.h."""
    return jnp.dtype(_sum_dtype(x.dtype) if platform == "cpu" else x.dtype)


def _needs_columns_cotangent(requested: Collection[str]) -> bool:
    return not {"x", "offset", "mask"}.isdisjoint(requested)


class _Chunk(NamedTuple):
    images: int
    rows: int


def _forward_chunk(x: Shaped, offset: Shaped, weight: Shaped, spec: Spec, target: Target) -> _Chunk:
    row_bytes = _row_elements(x, offset, weight) * _column_cotangent_dtype(x, target.platform).itemsize
    return _chunk(offset, _budget(["forward"], 1, x, offset, weight, spec, target), row_bytes=row_bytes)


def _tangent_chunk(tangents: Collection[str], x: Shaped, offset: Shaped, weight: Shaped, target: Target) -> _Chunk:
    arrays = 2 if "weight" in tangents else 1  # of the size of the columns
    row_bytes = arrays * _row_elements(x, offset, weight) * offset.dtype.itemsize
    return _chunk(offset, arrays * COLUMN_BYTES[target.platform] // 2, row_bytes=row_bytes)


def reference_chunk(x: Shaped, offset: Shaped, weight: Shaped, target: Target) -> _Chunk:
    """For derivatives of the reference."""
    row_bytes = _row_elements(x, offset, weight) * offset.dtype.itemsize
    return _chunk(offset, COLUMN_BYTES[target.platform] // REFERENCE_PART, row_bytes=row_bytes)


def _cotangents_chunk(
    requested: Collection[str],
    x: Shaped,
    offset: Shaped,
    weight: Shaped,
    x_dtype: DTypeLike,
    spec: Spec,
    target: Target,
) -> _Chunk:
    platform = target.platform
    arrays = _needs_columns_cotangent(requested) + ("weight" in requested)  # of the size of the columns
    row_bytes = arrays * _row_elements(x, offset, weight) * _column_cotangent_dtype(x, platform).itemsize
    image_bytes = 0
    if "x" in requested:
        order = _SortOrder.of(x, offset, weight, platform)
        row_bytes += order.row * 4
        image_bytes = order.image * 4 + _image_sum_bytes(x, offset, x_dtype)
    budget = _budget(requested, arrays, x, offset, weight, spec, target)
    return _chunk(offset, budget, row_bytes=row_bytes, image_bytes=image_bytes)


def _budget(
    computations: Collection[str],
    arrays: int,
    x: Shaped,
    offset: Shaped,
    weight: Shaped,
    spec: Spec,
    target: Target,
) -> int:
    """The bytes of a chunk, with so many arrays of the size of the columns."""
    limit = COLUMN_BYTES[target.platform] // (2 if "forward" in computations else 1)
    if target.platform != "cuda" or x.dtype.itemsize != 2:
        return limit
    sizes = paths.known_sizes(x, offset, weight, spec)
    if sizes is None:
        return min(limit, arrays * gpu_estimate.LARGE_CHUNK_BYTES)
    gpu = gpu_estimate.gpu_of(target.compute_capability, target.sms)
    return min(limit, arrays * gpu_estimate.column_bytes(computations, sizes, gpu))


def _image_sum_bytes(x: Shaped, offset: Shaped, x_dtype: DTypeLike) -> int:
    """The bytes of the sums of one image's cotangent. Where they have its type, they are made in the result itself."""
    return 0 if _sums_are_in_place(x_dtype, offset) else math.prod(x.shape[1:]) * offset.dtype.itemsize


def _sums_are_in_place(x_dtype: DTypeLike, offset: Shaped) -> bool:
    return jnp.dtype(x_dtype) == offset.dtype


def _chunk(offset: Shaped, budget: int, *, row_bytes: int, image_bytes: int = 0) -> _Chunk:
    """How many images, or else how many rows of one image, fit into `budget` bytes.

    Rows get half of the budget where an image itself leaves less: each chunk of rows visits all pixels of its image.
    """
    images, rows = offset.shape[:2]
    if not isinstance(rows * row_bytes + image_bytes, int):  # a symbolic dimension, of an exported function
        return _Chunk(1, 1)
    most = budget // max(rows * row_bytes + image_bytes, 1)
    if most < 2:
        return _Chunk(1, balanced(rows, max(budget - image_bytes, budget // 2) // max(row_bytes, 1)))
    return _Chunk(balanced(images, most), rows)


def _row_elements(x: Shaped, offset: Shaped, weight: Shaped) -> int:
    """The number of elements of the columns of one output row."""
    return offset.shape[2] * math.prod(weight.shape[:2]) * x.shape[-1]


class _SortOrder(NamedTuple):
    """The workspace, in int32 elements, that the cotangent of x needs on a GPU to sort the samples by pixel."""

    row: int  # for the samples of an output row
    image: int  # for the pixels of an image

    @classmethod
    def of(cls, x: Shaped, offset: Shaped, weight: Shaped, platform: str) -> "_SortOrder":
        if platform == "cpu":
            return cls(0, 0)
        groups, _ = groups_and_taps(offset, weight.shape[:2])
        return cls(offset.shape[2] * offset.shape[3], groups * ((x.shape[1] + 1) * (x.shape[2] + 1) + 1))


def _sampling_at(
    start: tuple[ArrayLike, ArrayLike],
    size: tuple[int, int],
    origin: tuple[ArrayLike, ArrayLike],
    offset: jax.Array,
    mask: jax.Array | None,
    weight: jax.Array,
    spec: Spec,
) -> Sampling:
    """The samples of `size` (images, rows) from `start` on, of `offset` and `mask`, which begin at `origin`."""
    image, row = start
    of_chunk = partial(read_chunk, start=start, size=size)
    mask = None if mask is None else of_chunk(mask)
    return Sampling(of_chunk(offset), mask, (image, origin[0] + row, origin[1]), weight.shape[:2], spec)
