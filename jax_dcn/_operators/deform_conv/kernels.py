"""The operator by kernels: custom calls take the samples, XLA multiplies them, a run of output rows at a time.

What CUDA's matrix units take is one custom call instead, in `fused`.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_dcn._operators.deform_conv import fused
from jax_dcn._operators.deform_conv.arguments import attributes_of, origin_of
from jax_dcn._operators.deform_conv.geometry import groups_and_taps
from jax_dcn._operators.deform_conv.reference import product, sum_dtype
from jax_dcn._primitive import jax_internals
from jax_dcn._primitive.chunks import balanced, flat, fold

# What is held at a time of samples and their cotangents, and half of it of samples alone. On a CPU more would leave the
# caches; a GPU wants large products.
COLUMN_BYTES = {"cpu": 16 * 2**20, "cuda": 128 * 2**20}


def forward(x, offset, weight, bias, mask, *, spec, origin, platform):
    """The rows and columns of the output from `origin` on, as many as `offset` has."""
    if fused.takes(x, offset, weight, spec, platform):
        return fused.forward(x, offset, weight, bias, mask, spec=spec, origin=origin)
    batch = x.shape[:-3]
    x, offset, mask = (flat(array, 3) for array in (x, offset, mask))
    images, rows, width = offset.shape[:3]
    run = _run_lengths(offset, COLUMN_BYTES[platform] // 2, row_bytes=_row_bytes(x, offset, weight))

    def images_at(image, count, y):
        def rows_at(row, height, y):
            tile = _Tile.at((image, row), (count, height), origin, offset, mask, weight, spec)
            part = product(tile.columns(x), weight, spec)
            part = (part if bias is None else part + bias).astype(spec.dtype)
            return _update(y, part, (image, row))

        return fold(rows_at, rows, run.rows, y)

    y = _zeros(x, (images, rows, width, weight.shape[-1]), spec.dtype)
    return fold(images_at, images, run.images, y).reshape(*batch, *y.shape[1:])


def cotangent(x, offset, weight, bias, mask, ct, *, requested, all_reduced, spec, origin, platform):
    """The cotangents in the dtype of the sums. That of x has x's dtype, unless it is all-reduced and not fused."""
    shapes = {"x": x.shape, "offset": offset.shape, "weight": weight.shape}
    shapes |= {name: array.shape for name, array in (("bias", bias), ("mask", mask)) if array is not None}
    x, offset, mask, ct = (flat(array, 3) for array in (x, offset, mask, ct))
    taken = fused.takes_cotangents(requested, x, offset, weight, spec, platform)
    out = fused.cotangents(x, offset, weight, mask, ct, wanted=taken, spec=spec, origin=origin)
    if rest := [name for name in requested if name not in taken and name != "bias"]:
        x_dtype = offset.dtype if "x" in all_reduced else x.dtype
        keywords = {"x_dtype": x_dtype, "spec": spec, "origin": origin, "platform": platform}
        out |= _cotangents_in_runs(x, offset, weight, mask, ct, wanted=rest, **keywords)
    if "bias" in requested:
        out["bias"] = ct.sum((0, 1, 2), dtype=offset.dtype)
    return {name: out[name].reshape(shapes[name]) for name in requested}


def _cotangents_in_runs(x, offset, weight, mask, ct, *, wanted, x_dtype, spec, origin, platform):
    sums, groups = offset.dtype, spec.feature_group_count
    through_samples = not {"x", "offset", "mask"}.isdisjoint(wanted)
    row_bytes = (through_samples + ("weight" in wanted)) * _row_bytes(x, offset, weight)
    image_bytes = 0
    if "x" in wanted:
        workspace = _Workspace.of(x, offset, weight, platform)
        row_bytes += workspace.row * 4
        image_bytes = workspace.image * 4 + math.prod(x.shape[1:]) * sums.itemsize
    run = _run_lengths(offset, COLUMN_BYTES[platform], row_bytes=row_bytes, image_bytes=image_bytes)

    def images_at(image, count, out):
        def rows_at(row, height, carry):
            out, d_xs = carry
            out = dict(out)
            tile = _Tile.at((image, row), (count, height), origin, offset, mask, weight, spec)
            part = _slice(ct, (image, row), (count, height))
            if through_samples:
                d_columns = _columns_cotangent(part, weight, spec)
                if "x" in wanted:
                    d_xs = tile.add_input_cotangent(d_columns, d_xs, count * (height * workspace.row + workspace.image))
            if positions := [name for name in ("offset", "mask") if name in wanted]:
                *cotangents, columns = tile.position_cotangents(x, d_columns, positions, "weight" in wanted)
                for name, d in zip(positions, cotangents, strict=True):
                    out[name] = _update(out[name], d, (image, row))
            elif "weight" in wanted:
                columns = tile.columns(x)
            if "weight" in wanted:
                out["weight"] += _weight_cotangent(part, columns, groups, spec, platform)
            return out, d_xs

        d_xs: Any = _zeros(x, (count, *x.shape[1:]), sums) if "x" in wanted else None
        out, d_xs = fold(rows_at, offset.shape[1], run.rows, (out, d_xs))
        if "x" in wanted:
            out["x"] = _update(out["x"], d_xs.astype(x_dtype), (image, 0))
        return out

    out = {
        name: _zeros(x, a.shape, dtype)
        for name, a, dtype in (("x", x, x_dtype), ("offset", offset, sums), ("mask", mask, sums))
        if name in wanted
    }
    if "weight" in wanted:
        shape = (groups, weight.shape[3] // groups, math.prod(weight.shape[:2]), weight.shape[2])
        out["weight"] = _zeros(x, shape, sums)
    out = fold(images_at, offset.shape[0], run.images, out)
    if "weight" in wanted:
        out["weight"] = out["weight"].transpose(2, 3, 0, 1)
    return out


def _columns_cotangent(ct, weight, spec):
    """[n, rows, width, Cout] by [kh, kw, Cin/groups, Cout]: [n, rows, width, K, Cin], in the sums' type."""
    *pixels, features = ct.shape
    taps, groups, group_channels = math.prod(weight.shape[:2]), spec.feature_group_count, weight.shape[2]
    dot = partial(jnp.einsum, precision=spec.precision, preferred_element_type=sum_dtype(weight.dtype))
    if groups == 1:
        d_columns = dot("...o,do->...d", ct, weight.reshape(taps * group_channels, features))
    else:
        ct = ct.reshape(*pixels, groups, features // groups)
        d_columns = dot("...go,kcgo->...kgc", ct, weight.reshape(taps, group_channels, groups, features // groups))
    return d_columns.reshape(*pixels, taps, groups * group_channels)


def _weight_cotangent(ct, columns, groups, spec, platform):
    """[n, rows, width, Cout] by [n, rows, width, K, Cin]: [groups, Cout/groups, K, Cin/groups], in the sums' type."""
    pixels, (taps, channels), features = math.prod(ct.shape[:3]), columns.shape[3:], ct.shape[-1]
    dot = partial(jnp.einsum, precision=spec.precision, preferred_element_type=sum_dtype(ct.dtype))
    if groups == 1:
        ct = ct.reshape(pixels, features).T
        if platform == "cpu":
            # XLA's fast products, those of 16 bits among them, do not take a transposed first operand. Flat behind a
            # barrier, it is one in memory.
            ct = lax.optimization_barrier(ct.reshape(-1)).reshape(features, pixels)
        d_weight = dot("op,pd->od", ct, columns.reshape(pixels, taps * channels))
    else:
        columns = columns.reshape(pixels, taps, groups, channels // groups)
        d_weight = dot("pkgc,pgo->gokc", columns, ct.reshape(pixels, groups, features // groups))
    return d_weight.reshape(groups, features // groups, taps, channels // groups)


class _Tile(NamedTuple):
    """Some rows of the output of some images: what one round of custom calls works on."""

    offset: jax.Array  # [n, rows, width, G·K·2]
    mask: jax.Array | None
    origin: jax.Array  # the first image, of x; the first row and column, of the whole output
    attributes: dict

    @classmethod
    def at(cls, start, size, origin, offset, mask, weight, spec):
        """The tile of `size` (images, rows) from `start` on; `offset` and `mask` are of all, from `origin` on."""
        image, row = start
        attributes = attributes_of(offset, weight, spec)
        first = origin_of(image, origin[0] + row, origin[1])
        return cls(_slice(offset, start, size), _slice(mask, start, size), first, attributes)

    def columns(self, x):
        """The samples [n, rows, width, K, Cin], of x's type."""
        return self._call("dcn_sample", x, self.offset, self.origin, results=self._columns(x))

    def position_cotangents(self, x, d_columns, wanted, columns_requested):
        """The cotangents of offset and mask, or the one that is wanted; and, in passing, the samples, or else None."""
        shape = self.offset.shape
        shapes = {"offset": shape, "mask": (*shape[:-1], shape[-1] // 2)}
        results = [_result(x, shapes[name], self.offset.dtype) for name in wanted]
        answer = self._call(
            "dcn_offset_cotangent",
            *(x, self.offset, self.origin, d_columns),
            results=[*results, self._columns(x)] if columns_requested else results,
            offset_requested="offset" in wanted,
            mask_requested="mask" in wanted,
            columns_requested=columns_requested,
        )
        return answer if columns_requested else (*answer, None)

    def add_input_cotangent(self, d_columns, d_x, workspace):
        """`d_x` and what these rows add to it, in place."""
        d_x, _ = self._call(
            "dcn_input_cotangent",
            *(self.offset, self.origin, d_columns, d_x),
            results=[_result(d_x, d_x.shape, d_x.dtype), _result(d_x, (workspace,), jnp.int32)],
            aliases={3: 0},
        )
        return d_x

    def _columns(self, x):
        return _result(x, (*self.offset.shape[:3], self._taps(), x.shape[-1]), x.dtype)

    def _taps(self):
        return math.prod(map(int, self.attributes["kernel_size"]))

    def _call(self, name, *operands, results, aliases=None, **attributes):
        if self.mask is not None:
            operands = (*operands, self.mask)
        call = jax.ffi.ffi_call(name, results, input_output_aliases=aliases)
        return call(*jax_internals.vary_alike(operands), **self.attributes, **attributes)


class _RunLengths(NamedTuple):
    images: int
    rows: int


def _run_lengths(offset, limit, *, row_bytes, image_bytes=0):
    """How many images, or else how many rows of one image, hold no more than `limit` bytes.

    Rows have half of it where an image itself leaves less: with every run, all of the image's cells are gone through.
    """
    images, rows = offset.shape[:2]
    if not isinstance(rows * row_bytes + image_bytes, int):  # a symbolic dimension, of an exported function
        return _RunLengths(1, 1)
    most = limit // max(rows * row_bytes + image_bytes, 1)
    if most < 2:
        return _RunLengths(1, balanced(rows, max(limit - image_bytes, limit // 2) // max(row_bytes, 1)))
    return _RunLengths(balanced(images, most), rows)


def _row_bytes(x, offset, weight):
    """Of the samples of one output row, in the sums' type."""
    return offset.shape[2] * math.prod(weight.shape[:2]) * x.shape[-1] * offset.dtype.itemsize


class _Workspace(NamedTuple):
    """How many int32 numbers the cotangent of x takes to sort the samples, as a CPU need not."""

    row: int  # for the samples of an output row
    image: int  # for the cells of an image

    @classmethod
    def of(cls, x, offset, weight, platform):
        if platform == "cpu":
            return cls(0, 0)
        groups, _ = groups_and_taps(offset, weight.shape[:2])
        return cls(offset.shape[2] * offset.shape[3], groups * ((x.shape[1] + 1) * (x.shape[2] + 1) + 1))


def _result(like, shape, dtype):
    return jax_internals.result_aval(jax.typeof(like), shape, dtype)


def _zeros(like, shape, dtype):
    """Zeros that vary over the mesh as `like` does, as the carry of a loop must."""
    return jax_internals.vary_alike([jnp.zeros(shape, dtype), like])[0]


def _slice(array, start, size):
    """Images and rows from `start` on."""
    if array is None:
        return None
    # In a loop over `start`, the barrier keeps XLA from changing all of `array` into words beforehand. `start` itself
    # does not come out of it: XLA for GPUs may want to evaluate it, which fails at a barrier.
    array, _ = lax.optimization_barrier((array, start))
    sizes = (*size, *array.shape[2:])
    return _in_words(partial(lax.dynamic_slice, start_indices=(*start, 0, 0), slice_sizes=sizes), array)


def _update(array, part, start):
    return _in_words(partial(lax.dynamic_update_slice, start_indices=(*start, 0, 0)), array, part)


def _in_words(move, *arrays):
    """`move(*arrays)`, where 16-bit floats move as integers: XLA's CPU compiler would widen them, all of an array."""
    dtype = arrays[0].dtype
    if dtype.itemsize != 2:
        return move(*arrays)
    words = (lax.bitcast_convert_type(array, jnp.uint16) for array in arrays)
    return lax.bitcast_convert_type(move(*words), dtype)
