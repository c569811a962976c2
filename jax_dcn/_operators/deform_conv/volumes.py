"""The columns of volumes and their derivatives, by the custom calls of the sampling.

The sampling samples all channels of an image at the same points. So here an image is the channels of one offset group:
x is [n·G, D, H, W, C/G], and its points are the taps of all output pixels of a part.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jax_dcn._operators.deform_conv.custom_calls import Samples
from jax_dcn._operators.deform_conv.geometry import Size, groups_and_taps, locations
from jax_dcn._operators.sampling import primitive as sampling
from jax_dcn._operators.sampling.arguments import Operands
from jax_dcn._operators.sampling.geometry import FAR, Spec
from jax_dcn._operators.sampling.reference import reference
from jax_dcn._primitive.parts import read_part, write_part

_Sampler = Callable[[jax.Array, list[jax.Array], Spec], jax.Array]


@dataclass(frozen=True)
class Volumes:
    """The volumes of a part of the output, as the sampling takes them."""

    x: jax.Array  # [n·G, D, H, W, C/G]

    @classmethod
    def read(cls, x: jax.Array, start: ArrayLike, count: int, offset_groups: int) -> Self:
        """`count` volumes of x from `start` on."""
        volumes = _by_group(read_part(x, (start,), (count,)), offset_groups)
        return cls(volumes.reshape(count * offset_groups, *volumes.shape[2:]))

    def sample(self, samples: Samples) -> jax.Array:
        """The columns [n, planes, rows, columns, K, C], of x's type."""
        part = _PartSamples(samples)
        return part.columns(self.x, part.offset, part.mask, sampling.sample)

    def sample_tangents(
        self, samples: Samples, tangents: Mapping[str, jax.Array], *, columns_requested: bool
    ) -> jax.Array:
        """The tangents of the columns, [n, planes, rows, columns, K, 1, C], from those tangents that exist.

        If the columns are requested, they follow the tangents: [n, planes, rows, columns, K, 2, C].
        """
        part = _PartSamples(samples)
        values = {"x": self.x, "offset": part.offset} | ({} if part.mask is None else {"mask": part.mask})
        active = {name: tangents[name] for name in values if name in tangents}
        active = {name: tangent if name == "x" else part.read(tangent) for name, tangent in active.items()}

        def columns(of_active: Mapping[str, jax.Array]) -> jax.Array:
            arrays = {**values, **of_active}
            return part.columns(arrays["x"], arrays["offset"], arrays.get("mask"), _sampled_by_reference)

        value, tangent = jax.jvp(columns, ({name: values[name] for name in active},), (active,))
        return jnp.stack([tangent, value] if columns_requested else [tangent], -2)

    def offset_cotangent(
        self, samples: Samples, d_columns: jax.Array, d_positions: Mapping[str, jax.Array], *, columns_requested: bool
    ) -> dict[str, jax.Array]:
        """The cotangents "offset" and "mask" in `d_positions`, with those of these samples written in place.

        Also "columns", if requested.
        """
        part = _PartSamples(samples)
        points, spec = part.points(part.offset, self.x.shape[1:-1])
        wide = part.widened(self.x)
        out = {}
        if "offset" in d_positions:
            d_points = sampling.locations_cotangent(wide, points, part.samples_cotangent(d_columns), spec)
            out["offset"] = write_part(d_positions["offset"], part.offset_of(d_points), samples.start)
        if "mask" in d_positions or columns_requested:
            sampled = part.unflat(sampling.sample(wide, points, spec))
            if "mask" in d_positions:
                d_mask = (sampled * _by_group(d_columns, part.groups)).sum(-1, dtype=points[0].dtype)
                d_mask = _of_all_groups(d_mask)
                out["mask"] = write_part(d_positions["mask"], d_mask, samples.start)
            if columns_requested:
                out["columns"] = part.masked(sampled, part.mask).astype(self.x.dtype)
        return out


def x_cotangent(samples: Samples, d_columns: jax.Array, d_x: jax.Array, *, is_on_gpu: bool) -> jax.Array:
    """`d_x` [n, D, H, W, C], the sums of the images of these samples, with the contribution of these added."""
    part = _PartSamples(samples)
    *shape, channels = d_x.shape
    points, spec = part.points(part.offset, shape[1:])
    by_group = (shape[0] * part.groups, *shape[1:], channels // part.groups)
    table = sampling.tap_table(by_group, points[0].shape[-1], points[0].dtype, spec)
    sorts = table.results(by_group[:1]) if is_on_gpu else []
    added = sampling.x_cotangent(points, part.samples_cotangent(d_columns), spec, [(by_group, d_x.dtype), *sorts])
    added = added.reshape(shape[0], part.groups, *by_group[1:])
    return d_x + _of_all_groups(added)


class _PartSamples:
    """The samples of a part of the output: [n, planes, rows, columns] output pixels, G offset groups and K taps."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.offset = self.read(samples.offset)
        self.mask = None if samples.mask is None else self.read(samples.mask)
        self.groups, self.taps = groups_and_taps(samples.offset, samples.kernel_size)
        images, *pixels = samples.shape
        self.flat_shape = (images * self.groups, math.prod(pixels) * self.taps)  # n·G, points

    def read(self, array: jax.Array) -> jax.Array:
        return read_part(array, self.samples.start, self.samples.size)

    def widened(self, array: jax.Array) -> jax.Array:
        """The array, in the dtype of the mask if there is one, so that what it multiplies is not rounded before."""
        return array if self.mask is None else array.astype(self.mask.dtype)

    def columns(self, x: jax.Array, offset: jax.Array, mask: jax.Array | None, sampler: _Sampler) -> jax.Array:
        points, spec = self.points(offset, x.shape[1:-1])
        return self.masked(self.unflat(sampler(self.widened(x), points, spec)), mask).astype(x.dtype)

    def points(self, offset: jax.Array, image_size: Size) -> tuple[list[jax.Array], Spec]:
        """The coordinates of the samples [n·G, points] along each axis, and how the sampling takes them."""
        samples, window = self.samples, self.samples.window
        first, *others = samples.origin
        positions = locations(offset, samples.kernel_size, window, (first + samples.start[1], *others))
        move = _wrapped if window.circular else _outside_is_outside
        moved = [jnp.moveaxis(move(*axis), -1, 1) for axis in zip(positions, image_size, strict=True)]
        points = [position.reshape(self.flat_shape) for position in moved]
        return points, Spec(window.dims, "linear", outside="wrap" if window.circular else "zero", planar=True)

    def offset_of(self, points: Sequence[jax.Array]) -> jax.Array:
        """Coordinates of points [n·G, points] along each axis in the shape of offset."""
        n, *pixels = self.samples.shape
        by_tap = [axis.reshape(n, self.groups, *pixels, self.taps) for axis in points]
        return jnp.stack([jnp.moveaxis(axis, 1, -2) for axis in by_tap], -1).reshape(self.offset.shape)

    def unflat(self, sampled: jax.Array) -> jax.Array:
        """Samples [n·G, points, C/G] as [n, G, planes, rows, columns, K, C/G]."""
        n, *pixels = self.samples.shape
        return sampled.reshape(n, self.groups, *pixels, self.taps, sampled.shape[-1])

    def masked(self, sampled: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Columns [n, planes, rows, columns, K, C], by samples as `unflat` returns them."""
        if mask is not None:
            sampled = sampled * self._of_taps(mask)
        return _of_all_groups(sampled)

    def samples_cotangent(self, d_columns: jax.Array) -> jax.Array:
        """The cotangent of the samples [n·G, points, C/G]."""
        d_sampled = _by_group(d_columns, self.groups)
        if self.mask is not None:
            d_sampled = d_sampled * self._of_taps(self.mask)
        return d_sampled.reshape(*self.flat_shape, d_sampled.shape[-1])

    def _of_taps(self, mask: jax.Array) -> jax.Array:
        """The mask as [n, G, planes, rows, columns, K, 1]."""
        return _by_group(mask, self.groups)[..., None]


def _by_group(array: jax.Array, groups: int) -> jax.Array:
    """An array [n, ..., C] as [n, G, ..., C/G]."""
    *shape, channels = array.shape
    return jnp.moveaxis(array.reshape(*shape, groups, channels // groups), -2, 1)


def _of_all_groups(array: jax.Array) -> jax.Array:
    """The inverse of `_by_group`."""
    last = jnp.moveaxis(array, 1, -2)
    *shape, groups, channels = last.shape
    return last.reshape(*shape, groups * channels)


def _sampled_by_reference(x: jax.Array, points: list[jax.Array], spec: Spec) -> jax.Array:
    return reference(Operands(x, None, *points), spec=spec)


def _outside_is_outside(position: jax.Array, size: int) -> jax.Array:
    """Positions of -1, which read a pixel with weight zero, moved to where no pixel is."""
    return jnp.where(position <= -1, -2, position)


def _wrapped(position: jax.Array, size: int) -> jax.Array:
    """Finite positions on a torus: those that are farther away than the sampling takes, moved into the image."""
    low = lax.stop_gradient(jnp.floor(position))
    remainder = lax.rem(low, jnp.full_like(low, max(size, 1)))
    remainder = jnp.where(remainder < 0, remainder + size, remainder)
    is_far = jnp.isfinite(position) & (jnp.abs(position) >= FAR)
    return jnp.where(is_far, remainder + (position - low), position)
