"""Where deformable PS-RoI pooling samples."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_dcn._operators.psroi_pool.arguments import Spec
from jax_dcn._operators.sampling import rounded_product


def positions(rois: jax.Array, shift: jax.Array, spec: Spec) -> tuple[jax.Array, jax.Array]:
    """The sampling locations of all bins along y and along x, each [R, out, out, classes, S].

    rois [R, 5]; shift [R, out, out, classes, 2], the result of `shift_of_bins`. A region that is not finite counts as
    one of zeros.
    """
    edges = jnp.where(is_finite(rois, spec)[:, None], _round_half_away(rois[:, 1:]), 0)
    return (
        _along(0, edges[:, 1], edges[:, 3], shift[..., 1], spec),
        _along(1, edges[:, 0], edges[:, 2], shift[..., 0], spec),
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


def _along(axis: int, first: jax.Array, last: jax.Array, shift: jax.Array, spec: Spec) -> jax.Array:
    """[R, out, out, classes, S] from the region's edges [R] and its bins' shifts [R, out, out, classes]."""
    bins, samples = spec.output_size[axis], spec.sample_per_part[axis]
    start = rounded_product(first, spec.spatial_scale) - 0.5
    extent = jnp.maximum(rounded_product(last + 1, spec.spatial_scale) - 0.5 - start, 0.1)
    bin_ = _quotient(extent, bins)
    number = np.arange(bins).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
    start, extent, step = (array[:, None, None, None] for array in (start, extent, _quotient(bin_, samples)))
    bin_start = start + rounded_product(number, bin_[:, None, None, None]) + rounded_product(shift, extent)
    return bin_start[..., None] + rounded_product(np.arange(samples), step[..., None])


def _quotient(a: jax.Array, b: int) -> jax.Array:
    """A division that XLA does not replace with a multiplication by the reciprocal, which rounds differently."""
    return a / jnp.where(jnp.isfinite(a), b, jnp.nan)
