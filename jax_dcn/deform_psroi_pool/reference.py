"""The operator in `jax.numpy`: its meaning, its derivatives of every order, and its form on any platform."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def reference(x, rois, offset, *, spec):
    def pool(x, rois, offset):
        return _pool(x, rois, offset, spec)

    for _ in x.shape[:-4]:
        pool = jax.vmap(pool, in_axes=(0, 0, None if offset is None else 0))
    return pool(x, rois, offset)


def _pool(x, rois, offset, spec):
    """One batch of images x [N, H, W, C] and their regions rois [R, 5]: [R, out, out, D]."""
    images, height, width, channels = x.shape
    groups_y, groups_x = spec.group_size
    features = channels // (groups_y * groups_x)
    # [R, out, out, classes, 2]
    shift = _shift_of_bins(offset, rois, spec)
    classes = shift.shape[3]
    rois = lax.stop_gradient(rois)
    corners = rois[:, 1:] * spec.spatial_scale
    finite = jnp.isfinite(corners[:, 2:] - corners[:, :2]).all(1)
    edges = jnp.where(finite[:, None], _round_half_away(rois[:, 1:]), 0)
    y = _locate(edges[:, 1], edges[:, 3], shift[..., 1], height, 0, spec)
    x_ = _locate(edges[:, 0], edges[:, 2], shift[..., 0], width, 1, spec)

    in_batch = (rois[:, 0] >= 0) & (rois[:, 0] < images)
    # Every index into [N, H, W, classes, features of a class, groups_y, groups_x] is [R, out, out, classes, Sy, Sx].
    pixels = x.astype(rois.dtype).reshape(images, height, width, classes, features // classes, groups_y, groups_x)
    # A gather wants something to gather from, even if no index asks for it.
    pixels = jnp.pad(pixels, [(0, int(size == 0)) for size in pixels.shape[:3]] + [(0, 0)] * 4)
    image = jnp.where(in_batch, rois[:, 0], -1).astype(jnp.int32)[:, None, None, None, None, None]
    class_ = np.arange(classes)[:, None, None]
    group_y = _scaled(spec.output_size[0], groups_y)[:, None, None, None, None]
    group_x = _scaled(spec.output_size[1], groups_x)[:, None, None, None]
    kept = y.kept[..., :, None] & x_.kept[..., None, :] & (in_batch & finite)[:, None, None, None, None, None]
    total = jnp.zeros((*kept.shape[:4], features // classes), rois.dtype)
    for i, j in np.ndindex(2, 2):
        row = jnp.where(kept, y.pixel[i][..., :, None], height)
        column = x_.pixel[j][..., None, :]
        index = (jnp.where(image < 0, images, image), row, column, class_, slice(None), group_y, group_x)
        corner = pixels.at[index].get(mode="fill", fill_value=0)
        weight = y.weight(i)[..., :, None] * x_.weight(j)[..., None, :]
        total += (jnp.where(kept, weight, 0)[..., None] * corner).sum((4, 5))
    count = kept.sum((4, 5), dtype=rois.dtype)[..., None]
    pooled = total / jnp.maximum(count, 1)
    # A shift that is not a number makes its bin so, and its own derivatives too.
    nan = jnp.isnan(shift).any(-1) & (in_batch & finite)[:, None, None, None]
    pooled += (jnp.where(nan[..., None], shift, 0).sum(-1) ** 2)[..., None]
    pooled = pooled.reshape(*pooled.shape[:3], features)
    not_finite = (in_batch & ~finite)[:, None, None, None]
    return jnp.where(not_finite, jnp.nan, pooled).astype(x.dtype)


def _shift_of_bins(offset, rois, spec):
    """The part's offsets of every bin, as fractions of the region: [R, out, out, classes, 2], dx before dy."""
    rows, columns = spec.output_size
    if offset is None:
        return jnp.zeros((rois.shape[0], rows, columns, 1, 2), rois.dtype)
    part_y, part_x = _scaled(rows, spec.part_size[0]), _scaled(columns, spec.part_size[1])
    shift = offset[:, part_y[:, None], part_x] * spec.trans_std
    return shift.reshape(*shift.shape[:3], shift.shape[-1] // 2, 2)


def _scaled(length, size):
    """Where each of `length` bins lies among `size` parts or groups."""
    return np.arange(length) * size // length


def _round_half_away(value):
    whole = jnp.trunc(value)
    return whole + jnp.where(jnp.abs(value - whole) >= 0.5, jnp.sign(value), 0)


class _Axis(NamedTuple):
    """What a bin's samples touch along one axis: pixels on both sides, the way between them, and which count."""

    pixel: tuple[jax.Array, jax.Array]
    fraction: jax.Array
    kept: jax.Array

    def weight(self, i):
        return self.fraction if i else 1 - self.fraction


def _locate(first, last, shift, size, axis, spec):
    """[R, out, out, classes, S] from the region's edges [R] and its bins' shifts [R, out, out, classes]."""
    bins, samples = spec.output_size[axis], spec.sample_per_part[axis]
    start = _product(first, spec.spatial_scale) - 0.5
    extent = jnp.maximum(_product(last + 1, spec.spatial_scale) - 0.5 - start, 0.1)
    bin_ = _quotient(extent, bins)
    number = np.arange(bins).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
    start, extent, step = (array[:, None, None, None] for array in (start, extent, _quotient(bin_, samples)))
    bin_start = start + _product(number, bin_[:, None, None, None]) + _product(shift, extent)
    position = bin_start[..., None] + _product(np.arange(samples), step[..., None])
    kept = (position >= -0.5) & (position <= size - 0.5) & (size > 0)
    position = jnp.clip(jnp.where(kept, position, 0), 0, max(size - 1, 0))
    low = jnp.floor(position)
    last = max(size - 1, 0)  # which a float may have rounded up
    pixel, next_pixel = (jnp.minimum(whole.astype(jnp.int32), last) for whole in (low, jnp.ceil(position)))
    return _Axis((pixel, next_pixel), position - low, kept)


# Whether a position is an integer, where derivatives jump, is decided by its last bit. XLA would fuse a product with
# the sum that uses it, and multiply by a reciprocal instead of dividing, both of which round otherwise; not so behind a
# choice that it cannot foresee.
def _product(a, b):
    product = a * b
    return jnp.where(jnp.isfinite(product), product, jnp.nan)


def _quotient(a, b):
    return a / jnp.where(jnp.isfinite(a), b, jnp.nan)
