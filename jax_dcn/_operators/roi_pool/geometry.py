"""Where the sample points of a bin lie, by the rules of lib/roi_pool/geometry.h."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_dcn._operators.bilinear import rounded_product
from jax_dcn._operators.roi_pool.arguments import Spec


class Points(NamedTuple):
    """The sample points of all bins along an axis.

    position [R, out, out, classes, S]: those that may be in the image; infinity where a bin has fewer.
    mean_of: the number that the mean is over, in each bin [R, 1, 1, 1]; None if it is that of the points in the image.
    """

    position: jax.Array
    mean_of: jax.Array | None


def points_of_bins(rois: jax.Array, shift: jax.Array, spec: Spec, image_size: Sequence[Any]) -> tuple[Points, Points]:
    """The sample points along y and along x.

    rois [R, 5]; shift [R, out, out, classes, 2], the result of `shift_of_bins`. A region that is not finite counts as
    one of zeros.
    """
    edges = jnp.where(is_finite(rois, spec)[:, None], rois[:, 1:], 0)
    if spec.convention == "rounded":
        edges = _round_half_away(edges)
    return (
        _along(0, edges[:, 1], edges[:, 3], shift[..., 1], spec, image_size[0]),
        _along(1, edges[:, 0], edges[:, 2], shift[..., 0], spec, image_size[1]),
    )


def is_finite(rois: jax.Array, spec: Spec) -> jax.Array:
    """Whether the corners of each region and its size, in pixels of x, are finite: [R]."""
    corners = rois[:, 1:] * spec.spatial_scale
    return jnp.isfinite(corners[:, 2:] - corners[:, :2]).all(1)


def shift_of_bins(offset: jax.Array | None, rois: jax.Array, spec: Spec) -> jax.Array:
    """The offset of every bin's part, as a fraction of the region: [R, out, out, classes, 2], dx before dy."""
    rows, columns = spec.output_size
    if offset is None:
        return jnp.zeros((rois.shape[0], rows, columns, 1, 2), rois.dtype)
    part_y, part_x = scaled(rows, spec.part_size[0]), scaled(columns, spec.part_size[1])
    shift = offset[:, part_y[:, None], part_x] * spec.trans_std
    return shift.reshape(*shift.shape[:3], shift.shape[-1] // 2, 2)


def scaled(length: int, size: int) -> Any:
    """The index, among `size` parts or groups, of the one that each of `length` bins belongs to."""
    return np.arange(length) * size // length


def _round_half_away(value: jax.Array) -> jax.Array:
    whole = jnp.trunc(value)
    return whole + jnp.where(jnp.abs(value - whole) >= 0.5, jnp.sign(value), 0)


def _along(axis: int, first: jax.Array, last: jax.Array, shift: jax.Array, spec: Spec, image_size: Any) -> Points:
    """The points of an axis from the regions' edges [R] and the bins' shifts [R, out, out, classes]."""
    bins, count = spec.output_size[axis], spec.points[axis]
    rounded = spec.convention == "rounded"
    half = 0.0 if spec.convention == "unaligned" else 0.5
    start = rounded_product(first, spec.spatial_scale) - half
    extent = rounded_product(last + 1 if rounded else last, spec.spatial_scale) - half - start
    if spec.convention != "aligned":
        extent = jnp.maximum(extent, 0.1 if rounded else 1.0)
    start, extent = (array[:, None, None, None] for array in (start, extent))
    bin_ = _quotient(extent, bins)
    total = jnp.full_like(bin_, count) if count else jnp.maximum(jnp.ceil(bin_), 0)
    number = np.arange(bins).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
    origin = start + rounded_product(number, bin_) + rounded_product(shift, extent)
    if rounded:
        distance = rounded_product(np.arange(count), _quotient(bin_, count)[..., None])
        return Points(origin[..., None] + distance, None)
    first = jnp.zeros_like(origin) if count else _first_in_image(origin, bin_, total)
    index = first[..., None] + jnp.arange(count or most_visited(image_size))
    distance = _quotient(rounded_product(index + 0.5, bin_[..., None]), total[..., None])
    position = origin[..., None] + distance
    return Points(jnp.where(index < total[..., None], position, jnp.inf), total)


def most_visited(image_size: Any) -> Any:
    """How many points of an adaptive number are visited, as they are more than half a pixel apart."""
    return 2 * image_size + 6


def _first_in_image(origin: jax.Array, bin_: jax.Array, total: jax.Array) -> jax.Array:
    """The index of a point before the first one that can be in the image; 0 if there is none."""
    before = lax.stop_gradient(-1 - origin) / _quotient(bin_, total) - 1.5
    return jnp.minimum(jnp.where(before > 0, jnp.floor(before), 0), total)


def _quotient(a: jax.Array, b: ArrayLike) -> jax.Array:
    """A division that XLA does not replace with a multiplication by the reciprocal, which rounds differently."""
    return a / jnp.where(jnp.isfinite(a), b, jnp.nan)
