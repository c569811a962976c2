"""The XLA custom calls of a convolution: `call` for all of them, and a function or a method for each of im2col.

All arrays have one batch dimension. The handlers are in lib/deform_conv/handlers*.cc.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn._operators.deform_conv.geometry import Window, groups_and_taps
from jax_dcn._operators.scatter import SAMPLE_RECORD_SIZE, Table, cells
from jax_dcn._primitive import extension


@dataclass(frozen=True)
class Samples:
    """The samples that a call takes: those of some images, or of some rows of one image."""

    offset: jax.Array  # [N, H, columns, G·K·2], or of volumes [N, D, H, columns, G·K·3]
    mask: jax.Array | None  # [N, H, columns, G·K], or of volumes [N, D, H, columns, G·K]
    start: tuple[ArrayLike, ArrayLike]  # the first image and row, or plane, of offset
    size: tuple[int, int]  # n, rows or planes
    origin: tuple[ArrayLike, ...]  # the index in the output where offset begins
    kernel_size: Sequence[int]
    window: Window

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.size, *self.offset.shape[2:-1])


@dataclass(frozen=True)
class Images:
    """All images, among which `Samples` chooses those that a call samples."""

    x: jax.Array

    def sample(self, samples: Samples) -> jax.Array:
        """The columns [n, rows, columns, K, Cin], of x's type."""
        (columns,) = call("dcn_sample", self.x, *positions(samples), samples=samples, results=[self._columns(samples)])
        return columns

    def sample_tangents(
        self, samples: Samples, tangents: Mapping[str, jax.Array], *, columns_requested: bool
    ) -> jax.Array:
        """The tangents of the columns, [n, rows, columns, K, 1, Cin], from those tangents that exist.

        If the columns are requested, they follow the tangents: [n, rows, columns, K, 2, Cin].
        """
        present = {name: tangents[name] for name in ("x", "offset", "mask") if name in tangents}
        (*pixels, channels), dtype = self._columns(samples)
        (out,) = call(
            "dcn_sample_tangents",
            *(self.x, *positions(samples), *present.values()),
            samples=samples,
            results=[((*pixels, 2 if columns_requested else 1, channels), dtype)],
            columns_requested=columns_requested,
            **{f"{name}_tangent": name in present for name in ("x", "offset", "mask")},
        )
        return out

    def offset_cotangent(
        self, samples: Samples, d_columns: jax.Array, d_positions: Mapping[str, jax.Array], *, columns_requested: bool
    ) -> dict[str, jax.Array]:
        """The cotangents "offset" and "mask" in `d_positions`, with those of these samples written in place.

        Also "columns", if requested, which need the same reads of x.
        """
        requested = [name for name in ("offset", "mask") if name in d_positions]
        operands = self.x, *positions(samples), d_columns
        results = position_results(samples, requested)
        if columns_requested:
            results["columns"] = self._columns(samples)
        cotangents = call(
            "dcn_offset_cotangent",
            *(*operands, *(d_positions[name] for name in requested)),
            samples=samples,
            results=list(results.values()),
            aliases={len(operands) + k: k for k in range(len(requested))},
            columns_requested=columns_requested,
            **{f"{name}_requested": name in requested for name in ("offset", "mask")},
        )
        return dict(zip(results, cotangents, strict=True))

    def _columns(self, samples: Samples) -> extension.ResultType:
        _, taps = groups_and_taps(samples.offset, samples.kernel_size)
        return (*samples.shape, taps, self.x.shape[-1]), self.x.dtype


def x_cotangent(samples: Samples, d_columns: jax.Array, d_x: jax.Array) -> jax.Array:
    """`d_x` [N, H, W, Cin], N >= n, with the contribution of these samples added in place, on a CPU."""
    operands = *positions(samples), d_columns, d_x
    results = [(d_x.shape, d_x.dtype)]
    (out,) = call("dcn_cpu_x_cotangent", *operands, samples=samples, results=results, aliases={3: 0})
    return out


class SortedSamples(NamedTuple):
    """Samples by image and offset group, in the order of the pixels of x that they read."""

    values: jax.Array  # [n, G, rows·columns·K, 4]: SortedSample in lib/scatter/tables.h
    row_start: jax.Array  # [n, G, cells + 1]
    start: tuple[ArrayLike, ArrayLike]  # the first image and row of offset


def sort_samples(x: jax.Array, samples: Samples) -> SortedSamples:
    """Sorts the samples for `gather_samples`, on a GPU. Of x, only the size counts."""
    groups, taps = groups_and_taps(samples.offset, samples.kernel_size)
    images, *pixels = samples.shape
    table = Table(math.prod(pixels) * taps, cells(*x.shape[1:-1]), SAMPLE_RECORD_SIZE, samples.offset.dtype)
    results = table.results((images, groups))
    values, row_start, _ = call("dcn_sort_samples", x, *positions(samples), samples=samples, results=results)
    return SortedSamples(values, row_start, samples.start)


def gather_samples(samples: Samples, sorted_samples: SortedSamples, d_columns: jax.Array, d_x: jax.Array) -> jax.Array:
    """`d_x` [N, H, W, Cin], N >= n, with the contribution of these samples added in place, on a GPU.

    They are images, or rows of one image, of those in `sorted_samples`. A `d_x` of 16 bits is replaced in their images,
    which must have all rows.
    """
    (image, row), (first_image, first_row) = samples.start, sorted_samples.start
    first_sample = jnp.subtract(row, first_row) * math.prod(d_columns.shape[2:4])
    start = jnp.stack([jnp.asarray(i, jnp.int32) for i in (image, jnp.subtract(image, first_image), first_sample)])
    (out,) = extension.call(
        "dcn_gather_samples",
        *(sorted_samples.values, sorted_samples.row_start, start, d_columns, d_x),
        results=[(d_x.shape, d_x.dtype)],
        aliases={4: 0},
        circular=samples.window.circular,
    )
    return out


def call(
    name: str,
    *operands: jax.Array,
    samples: Samples,
    results: Sequence[extension.ResultType],
    aliases: Any = None,
    **attributes: bool | int,
) -> Sequence[jax.Array]:
    """The custom call `name`, with the mask, if there is one, as its last operand."""
    window = samples.window
    return extension.call(
        name,
        *operands,
        samples.mask,
        results=results,
        aliases=aliases,
        kernel_size=samples.kernel_size,
        strides=window.strides,
        padding=[low for low, _ in window.padding],
        kernel_dilation=window.kernel_dilation,
        circular=window.circular,
        offset_groups=groups_and_taps(samples.offset, samples.kernel_size)[0],
        **attributes,
    )


def positions(samples: Samples) -> tuple[jax.Array, jax.Array]:
    """The operands that locate samples: offset, and where in the output and in offset they begin."""
    (image, row), (first_row, first_column) = samples.start, samples.origin
    origin = image, first_row + row, first_column, row
    return samples.offset, jnp.stack([jnp.asarray(first, jnp.int32) for first in origin])


def position_results(samples: Samples, requested: Sequence[str]) -> dict[str, extension.ResultType]:
    """The shapes and types of those cotangents of offset and mask that are requested."""
    offset = samples.offset
    shapes = {"offset": offset.shape, "mask": (*offset.shape[:-1], offset.shape[-1] // 2)}
    return {name: (shape, offset.dtype) for name, shape in shapes.items() if name in requested}
