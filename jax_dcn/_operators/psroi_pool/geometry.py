"""Where deformable PS-RoI pooling samples."""

import jax.numpy as jnp
import numpy as np


def positions(rois, shift, spec):
    """Where the points of all bins lie along y and along x, each [R, out, out, classes, S].

    rois [R, 5]; shift [R, out, out, classes, 2] as `shift_of_bins` has it. A region that is not finite counts as one of
    zeros.
    """
    edges = jnp.where(is_finite(rois, spec)[:, None], _round_half_away(rois[:, 1:]), 0)
    return (
        _along(0, edges[:, 1], edges[:, 3], shift[..., 1], spec),
        _along(1, edges[:, 0], edges[:, 2], shift[..., 0], spec),
    )


def is_finite(rois, spec):
    corners = rois[:, 1:] * spec.spatial_scale
    return jnp.isfinite(corners[:, 2:] - corners[:, :2]).all(1)


def shift_of_bins(offset, rois, spec):
    """The part's offsets of every bin, as fractions of the region: [R, out, out, classes, 2], dx before dy."""
    rows, columns = spec.output_size
    if offset is None:
        return jnp.zeros((rois.shape[0], rows, columns, 1, 2), rois.dtype)
    part_y, part_x = scaled(rows, spec.part_size[0]), scaled(columns, spec.part_size[1])
    shift = offset[:, part_y[:, None], part_x] * spec.trans_std
    return shift.reshape(*shift.shape[:3], shift.shape[-1] // 2, 2)


def scaled(length, size):
    """Where each of `length` bins lies among `size` parts or groups."""
    return np.arange(length) * size // length


def _round_half_away(value):
    whole = jnp.trunc(value)
    return whole + jnp.where(jnp.abs(value - whole) >= 0.5, jnp.sign(value), 0)


def _along(axis, first, last, shift, spec):
    """[R, out, out, classes, S] from the region's edges [R] and its bins' shifts [R, out, out, classes]."""
    bins, samples = spec.output_size[axis], spec.sample_per_part[axis]
    start = _product(first, spec.spatial_scale) - 0.5
    extent = jnp.maximum(_product(last + 1, spec.spatial_scale) - 0.5 - start, 0.1)
    bin_ = _quotient(extent, bins)
    number = np.arange(bins).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
    start, extent, step = (array[:, None, None, None] for array in (start, extent, _quotient(bin_, samples)))
    bin_start = start + _product(number, bin_[:, None, None, None]) + _product(shift, extent)
    return bin_start[..., None] + _product(np.arange(samples), step[..., None])


# Whether a position is an integer, where derivatives jump, is decided by its last bit. XLA would fuse a product with
# the sum that uses it, and multiply by a reciprocal instead of dividing, both of which round otherwise; not so behind a
# choice that it cannot foresee.
def _product(a, b):
    product = a * b
    return jnp.where(jnp.isfinite(product), product, jnp.nan)


def _quotient(a, b):
    return a / jnp.where(jnp.isfinite(a), b, jnp.nan)
