"""The im2col path: custom calls sample columns and XLA multiplies them, one part of the output at a time.

The calls are those of `custom_calls`, or for volumes, whose rows are planes, those of `volumes`.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jax_dcn._operators.deform_conv import custom_calls, volumes
from jax_dcn._operators.deform_conv.arguments import Spec
from jax_dcn._operators.deform_conv.convolution import Convolution
from jax_dcn._operators.deform_conv.custom_calls import Images, Samples, SortedSamples
from jax_dcn._operators.deform_conv.geometry import groups_and_taps
from jax_dcn._operators.deform_conv.im2col_plan import Im2col, product_splits
from jax_dcn._operators.deform_conv.volumes import Volumes
from jax_dcn._primitive.parts import empty, filled, fold, read_part, write_part
from jax_dcn._primitive.promotion import sum_dtype

# The initial values of the arrays of results on a CPU, which are overwritten; gradients start from 0. XLA for CPUs
# ignores the barrier of `parts.filled`, so it would make one array for results with equal initial values, and copy it.
VALUE_FILL, TANGENT_FILL = math.nan, math.inf

Cotangents: TypeAlias = dict[str, jax.Array]


def forward(convolution: Convolution, choices: Im2col, fill: float) -> jax.Array:
    (x, _, weight, bias, _), spec, _ = convolution

    def of_part(images: Sequence[Images | Volumes], samples: Samples) -> jax.Array:
        part = _product(images[0].sample(samples), weight, spec)
        return part if bias is None else part + bias

    return _in_parts(convolution, choices, fill, [x], of_part)


def tangent(convolution: Convolution, tangents: Mapping[str, jax.Array], choices: Im2col) -> jax.Array:
    """The tangent of the result, from those of x, offset or mask, and maybe of weight and bias."""
    (x, _, weight, _, _), spec, _ = convolution
    # One product multiplies the columns' tangents by the weight and the columns by the weight's tangent.
    factors = jnp.stack([weight, tangents["weight"]] if "weight" in tangents else [weight], axis=spec.dims)

    def of_part(images: Sequence[Images | Volumes], samples: Samples) -> jax.Array:
        of_x, *of_tangent = images
        of_samples = {**tangents, "x": of_tangent[0].x} if of_tangent else tangents
        columns = of_x.sample_tangents(samples, of_samples, columns_requested="weight" in tangents)
        *place, taps, arrays, channels = columns.shape
        part = _product(columns.reshape(*place, taps * arrays, channels), factors, spec)
        return part + tangents["bias"] if "bias" in tangents else part

    arrays = [x, tangents["x"]] if "x" in tangents else [x]
    return _in_parts(convolution, choices, TANGENT_FILL, arrays, of_part)


def cotangents(convolution: Convolution, d_y: jax.Array, requested: Collection[str], choices: Im2col) -> Cotangents:
    """The requested cotangents, in the sums' type, but that of x in the planned one."""
    return _CotangentSums(convolution, d_y, requested, choices).of_all_images()


class _Part(NamedTuple):
    """A part of the images."""

    first: ArrayLike
    num_images: int
    images: Images | Volumes


class _CotangentSums:
    """Computes cotangents part by part.

    The methods `add_...` take the cotangents so far, by name, and return them with those of a part: of the images, or
    of the rows of these images, from a first one on.
    """

    def __init__(self, convolution: Convolution, d_y: jax.Array, requested: Collection[str], choices: Im2col) -> None:
        self.convolution, self.d_y, self.requested, self.choices = convolution, d_y, requested, choices
        self.positions = [name for name in ("offset", "mask") if name in requested]

    def of_all_images(self) -> Cotangents:
        (_, offset, weight, _, _), _, _ = self.convolution
        images, choices = offset.shape[0], self.choices
        if choices.x.sorted_images:
            out = fold(self.add_sorted_images, images, choices.x.sorted_images, self.initial())
        else:
            out = fold(self.add_images, images, choices.images, self.initial())
        if "weight" in out:
            out["weight"] = out["weight"].transpose(2, 3, 0, 1).reshape(weight.shape)
        return out

    def initial(self) -> Cotangents:
        """Arrays that the parts add to, and others that they overwrite.

        The cotangent of weight is [groups, Cout/groups, K, Cin/groups], as the products have it.
        """
        (x, offset, weight, _, mask), spec, _ = self.convolution
        wide, groups = offset.dtype, spec.feature_group_count
        shapes = {"x": (x.shape, self.choices.x.dtype), "offset": (offset.shape, wide)}
        if mask is not None:
            shapes["mask"] = (mask.shape, wide)
        taps = math.prod(weight.shape[:-2])
        shapes["weight"] = ((groups, weight.shape[-1] // groups, taps, weight.shape[-2]), wide)
        # Sums that have an array of their own are written to that of x at last, even those of an empty output. A kernel
        # that rounds the cotangent of x writes all of it, but an empty output may call none.
        overwrites_x = self.choices.x.has_sums or (self.choices.x.dtype != wide and 0 not in offset.shape[1:-1])
        added_to = ("weight",) if overwrites_x else ("weight", "x")
        return {
            name: filled(self.d_y, *of_name) if name in added_to else _overwritten(self.d_y, *of_name, self.choices)
            for name, of_name in shapes.items()
            if name in self.requested
        }

    def add_sorted_images(self, first: ArrayLike, count: int, out: Cotangents) -> Cotangents:
        """Sorts the samples of all parts of these images at once."""
        x, offset, *_ = self.convolution.operands
        all_rows = self.convolution.samples_at((first, 0), (count, offset.shape[1]))
        add = partial(self.add_images, sorted_samples=custom_calls.sort_samples(x, all_rows))
        return fold(add, count, self.choices.images, out, first)

    def add_images(
        self, image: ArrayLike, count: int, out: Cotangents, sorted_samples: SortedSamples | None = None
    ) -> Cotangents:
        (x, offset, _, _, _), choices, rows = self.convolution.operands, self.choices, self.d_y.shape[1]
        d_x = out.get("x")
        if d_x is not None and choices.x.has_sums:  # until they are rounded, a part's sums take the result's place
            out = out | {"x": filled(x, (count, *x.shape[1:]), offset.dtype)}
        part = _Part(image, count, _images_at(image, count, x, self.convolution))
        if choices.x.sorted_rows:
            out = fold(partial(self.add_sorted_rows, part), rows, choices.x.sorted_rows, out)
        else:
            out = fold(partial(self.add_rows, part, sorted_samples), rows, choices.rows, out)
        if d_x is not None and choices.x.has_sums:
            out = out | {"x": write_part(d_x, out["x"].astype(choices.x.dtype), (image, 0))}
        return out

    def add_sorted_rows(self, part: _Part, first: ArrayLike, height: int, out: Cotangents) -> Cotangents:
        """Sorts the samples of all parts of these rows at once."""
        samples = self.convolution.samples_at((part.first, first), (part.num_images, height))
        sorted_samples = custom_calls.sort_samples(self.convolution.operands.x, samples)
        return fold(partial(self.add_rows, part, sorted_samples), height, self.choices.rows, out, first)

    def add_rows(
        self, part: _Part, sorted_samples: SortedSamples | None, row: ArrayLike, height: int, out: Cotangents
    ) -> Cotangents:
        (_, _, weight, _, _), spec, _ = self.convolution
        start, size = (part.first, row), (part.num_images, height)
        samples, d_y = self.convolution.samples_at(start, size), read_part(self.d_y, start, size)
        out, columns = dict(out), None
        if self.positions or "x" in out:
            d_columns = _columns_cotangent(d_y, weight, spec, self.choices.columns_dtype)
            if "x" in out:
                out["x"] = self.add_to_x(samples, sorted_samples, d_columns, out["x"])
            if self.positions:
                d_positions = {name: out[name] for name in self.positions}
                out |= part.images.offset_cotangent(samples, d_columns, d_positions, columns_requested="weight" in out)
                columns = out.pop("columns", None)
        if "weight" in out:
            columns = part.images.sample(samples) if columns is None else columns
            out["weight"] += _weight_cotangent(d_y, columns, spec, self.choices)
        return out

    def add_to_x(
        self, samples: Samples, sorted_samples: SortedSamples | None, d_columns: jax.Array, d_x: jax.Array
    ) -> jax.Array:
        if sorted_samples is not None:
            return custom_calls.gather_samples(samples, sorted_samples, d_columns, d_x)
        if self.convolution.spec.dims == 2:
            return custom_calls.x_cotangent(samples, d_columns, d_x)
        return volumes.x_cotangent(samples, d_columns, d_x, is_on_gpu=self.choices.is_on_gpu)


def _images_at(image: ArrayLike, count: int, x: jax.Array, convolution: Convolution) -> Images | Volumes:
    """The images of x, or of its tangent, as the custom calls take them."""
    _, offset, weight, _, _ = convolution.operands
    if convolution.spec.dims == 2:
        return Images(x)
    offset_groups, _ = groups_and_taps(offset, weight.shape[:-2])
    return Volumes.read(x, image, count, offset_groups)


def _in_parts(
    convolution: Convolution,
    choices: Im2col,
    fill: float,
    arrays: Sequence[jax.Array],
    of_part: Callable[[Sequence[Images | Volumes], Samples], jax.Array],
) -> jax.Array:
    """A result in parts, which `of_part` computes without rounding, from images of `arrays` and the samples."""
    (x, offset, weight, _, _), spec, _ = convolution

    def images_at(image: ArrayLike, count: int, y: jax.Array) -> jax.Array:
        images = [_images_at(image, count, array, convolution) for array in arrays]

        def rows_at(row: ArrayLike, height: int, y: jax.Array) -> jax.Array:
            start = (image, row)
            part = of_part(images, convolution.samples_at(start, (count, height)))
            return write_part(y, part.astype(y.dtype), start)

        return fold(rows_at, y.shape[1], choices.rows, y)

    y = _overwritten(x, (*offset.shape[:-1], weight.shape[-1]), spec.dtype, choices, fill)
    return fold(images_at, y.shape[0], choices.images, y)


def _overwritten(
    like: jax.Array, shape: Sequence[Any], dtype: DTypeLike, choices: Im2col, fill: float = 0
) -> jax.Array:
    """An array whose elements are all written by the parts."""
    return empty(like, shape, dtype) if choices.is_on_gpu else filled(like, shape, dtype, fill)


def _product(columns: jax.Array, weight: jax.Array, spec: Spec) -> jax.Array:
    """[n, *output, K, Cin] by [*kernel size, Cin/groups, Cout]: [n, *output, Cout], in the sums' type."""
    *shape, taps, channels = columns.shape
    pixels, groups, features = math.prod(shape), spec.feature_group_count, weight.shape[-1]
    dot = partial(jnp.einsum, precision=spec.precision, preferred_element_type=sum_dtype(columns.dtype))
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
    """[n, *output, Cout] by [*kernel size, Cin/groups, Cout]: [n, *output, K, Cin], of `dtype`."""
    *pixels, features = d_y.shape
    *kernel_size, group_channels, _ = weight.shape
    taps, groups = math.prod(kernel_size), spec.feature_group_count
    # XLA sums in float32 and rounds once, where it writes 16 bits.
    product_dtype = dtype if d_y.dtype == weight.dtype else sum_dtype(weight.dtype)
    dot = partial(jnp.einsum, precision=spec.precision, preferred_element_type=product_dtype)
    if groups == 1:
        d_columns = dot("...o,do->...d", d_y, weight.reshape(taps * group_channels, features))
    else:
        d_y = d_y.reshape(*pixels, groups, features // groups)
        d_columns = dot("...go,kcgo->...kgc", d_y, weight.reshape(taps, group_channels, groups, features // groups))
    return d_columns.reshape(*pixels, taps, groups * group_channels).astype(dtype)


def _weight_cotangent(d_y: jax.Array, columns: jax.Array, spec: Spec, choices: Im2col) -> jax.Array:
    """[n, *output, Cout] by [n, *output, K, Cin]: [groups, Cout/groups, K, Cin/groups], in the sums' type."""
    pixels, (taps, channels), features = math.prod(d_y.shape[:-1]), columns.shape[-2:], d_y.shape[-1]
    groups = spec.feature_group_count
    dot = partial(jnp.einsum, precision=spec.precision, preferred_element_type=sum_dtype(d_y.dtype))
    if groups == 1:
        columns = columns.reshape(pixels, taps * channels)
        if not choices.is_on_gpu:
            # The fast products do not take a transposed operand. The barrier makes XLA store the transposed array.
            d_y = lax.optimization_barrier(d_y.reshape(pixels, features).T.reshape(-1)).reshape(features, pixels)
            d_weight = dot("op,pd->od", d_y, columns)
        else:
            splits = product_splits(pixels, features, taps * channels, choices.sms)
            d_y, columns = (array.reshape(splits, pixels // splits, array.shape[-1]) for array in (d_y, columns))
            d_weight = dot("spo,spd->sod", d_y, columns).sum(0)
    else:
        columns = columns.reshape(pixels, taps, groups, channels // groups)
        d_weight = dot("pkgc,pgo->gokc", columns, d_y.reshape(pixels, groups, features // groups))
    return d_weight.reshape(groups, features // groups, taps, channels // groups)
