"""The operator in `jax.numpy`: its definition, the source of its higher derivatives, and its form on any platform."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_dcn._operators.psroi_pool.arguments import Spec
from jax_dcn._operators.psroi_pool.geometry import is_finite, positions, scaled, shift_of_bins


def reference(x: jax.Array, rois: jax.Array, offset: jax.Array | None, *, spec: Spec) -> jax.Array:
    pool: Any = partial(_pool, spec=spec)
    for _ in x.shape[:-4]:
        pool = jax.vmap(pool, in_axes=(0, 0, None if offset is None else 0))
    return pool(x, rois, offset)


def _pool(x: jax.Array, rois: jax.Array, offset: jax.Array | None, spec: Spec) -> jax.Array:
    """One batch of images x [N, H, W, C] and their regions rois [R, 5]: [R, out, out, D]."""
    images, height, width, channels = x.shape
    groups_y, groups_x = spec.group_size
    features = channels // (groups_y * groups_x)
    # [R, out, out, classes, 2]
    shift = shift_of_bins(offset, rois, spec)
    classes = shift.shape[3]
    rois = lax.stop_gradient(rois)
    finite = is_finite(rois, spec)
    location_y, location_x = map(_locate, positions(rois, shift, spec), (height, width))

    in_batch = (rois[:, 0] >= 0) & (rois[:, 0] < images)
    # Every index into [N, H, W, classes, features of a class, groups_y, groups_x] is [R, out, out, classes, Sy, Sx].
    pixels = x.astype(rois.dtype).reshape(images, height, width, classes, features // classes, groups_y, groups_x)
    # A gather needs at least one element to gather from, even if no index selects it.
    pixels = jnp.pad(pixels, [(0, int(size == 0)) for size in pixels.shape[:3]] + [(0, 0)] * 4)
    image = jnp.where(in_batch, rois[:, 0], -1).astype(jnp.int32)[:, None, None, None, None, None]
    class_ = np.arange(classes)[:, None, None]
    group_y = scaled(spec.output_size[0], groups_y)[:, None, None, None, None]
    group_x = scaled(spec.output_size[1], groups_x)[:, None, None, None]
    kept = (
        location_y.kept[..., :, None]
        & location_x.kept[..., None, :]
        & (in_batch & finite)[:, None, None, None, None, None]
    )
    total = jnp.zeros((*kept.shape[:4], features // classes), rois.dtype)
    for i, j in np.ndindex(2, 2):
        row = jnp.where(kept, location_y.pixel[i][..., :, None], height)
        column = location_x.pixel[j][..., None, :]
        index = (jnp.where(image < 0, images, image), row, column, class_, slice(None), group_y, group_x)
        corner = pixels.at[index].get(mode="fill", fill_value=0)
        weight = location_y.weight(i)[..., :, None] * location_x.weight(j)[..., None, :]
        total += (jnp.where(kept, weight, 0)[..., None] * corner).sum((4, 5))
    count = kept.sum((4, 5), dtype=rois.dtype)[..., None]
    pooled = total / jnp.maximum(count, 1)
    # A shift that is NaN makes its bin NaN, and its own derivatives too.
    nan = jnp.isnan(shift).any(-1) & (in_batch & finite)[:, None, None, None]
    pooled += (jnp.where(nan[..., None], shift, 0).sum(-1) ** 2)[..., None]
    pooled = pooled.reshape(*pooled.shape[:3], features)
    not_finite = (in_batch & ~finite)[:, None, None, None]
    return jnp.where(not_finite, jnp.nan, pooled).astype(x.dtype)


class _Axis(NamedTuple):
    """A bin's samples along one axis: the two neighbouring pixels, the fraction of the way, and which samples count."""

    pixel: tuple[jax.Array, jax.Array]
    fraction: jax.Array
    kept: jax.Array

    def weight(self, i: int) -> jax.Array:
        return self.fraction if i else 1 - self.fraction


def _locate(position: jax.Array, size: int) -> _Axis:
    kept = (position >= -0.5) & (position <= size - 0.5) & (size > 0)
    last = max(size - 1, 0)
    position = jnp.clip(jnp.where(kept, position, 0), 0, last)
    low = jnp.floor(position)

    def pixel(whole: jax.Array) -> jax.Array:
        return jnp.minimum(whole.astype(jnp.int32), last)  # which a float may have rounded up

    return _Axis((pixel(low), pixel(jnp.ceil(position))), position - low, kept)
