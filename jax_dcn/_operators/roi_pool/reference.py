"""The operator in `jax.numpy`: its definition, the source of its higher derivatives, and its form on any platform."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_dcn._operators.roi_pool.arguments import Operands, Spec
from jax_dcn._operators.roi_pool.geometry import Points, is_finite, points_of_bins, scaled, shift_of_bins


def reference(operands: Operands[jax.Array], *, spec: Spec) -> jax.Array:
    x, rois, offset = operands
    pool: Any = partial(_pool, spec=spec)
    for _ in x.shape[:-4]:
        pool = jax.vmap(pool, in_axes=(0, 0, None if offset is None else 0))
    return pool(x, rois, offset)


def max_reference(operands: Operands[jax.Array], *, spec: Spec) -> jax.Array:
    """Max pooling: the first largest of the points of each bin, a region and a bin at a time."""
    x, rois, _ = operands
    pool: Any = partial(_max_pool, spec=spec)
    for _ in x.shape[:-4]:
        pool = jax.vmap(pool)
    return pool(x, rois)


def _max_pool(x: jax.Array, rois: jax.Array, spec: Spec) -> jax.Array:
    """One batch of images x [N, H, W, C] and their regions rois [R, 5]: [R, out, out, C]."""
    images, height, width, channels = x.shape
    if rois.shape[0] == 0:  # the loop below is traced even if it has no iterations
        return jnp.zeros((0, *spec.output_size, channels), x.dtype)
    rois = lax.stop_gradient(rois)
    finite = is_finite(rois, spec)
    in_batch = (rois[:, 0] >= 0) & (rois[:, 0] < images)
    points = points_of_bins(rois, shift_of_bins(None, rois, spec), spec, (height, width))
    # [R, out, S]: the rows of bins do not depend on the columns
    position_y, position_x = points[0].position[:, :, 0, 0], points[1].position[:, 0, :, 0]
    y = _AxisPoints(Points(position_y, points[0].mean_of), height, spec)
    x_ = _AxisPoints(Points(position_x, points[1].mean_of), width, spec)
    pixels = x.astype(rois.dtype)
    pixels = jnp.pad(pixels, [(0, int(size == 0)) for size in pixels.shape[:3]] + [(0, 0)])
    image = jnp.where(in_batch & finite, rois[:, 0], -1).astype(jnp.int32)
    bins = np.arange(spec.output_size[0] * spec.output_size[1])

    def of_bin(index: Any) -> jax.Array:
        region, bin_ = index
        row, column = bin_ // spec.output_size[1], bin_ % spec.output_size[1]
        own = pixels[jnp.maximum(image[region], 0)]

        def value(i: jax.Array, j: jax.Array) -> jax.Array:
            """The points [..., C] at indices i and j, both [..., C] or with one feature."""
            feature = jnp.arange(channels)
            total = jnp.zeros((), own.dtype)
            for a, b in np.ndindex(2, 2):
                corner = own[y.pixel[a][region, row, i], x_.pixel[b][region, column, j], feature]
                weight = y.weight(a)[region, row, i] * x_.weight(b)[region, column, j]
                total += weight * _read(corner, weight)
            return jnp.where(y.kept[region, row, i] & x_.kept[region, column, j], total, 0)

        visited_y, visited_x = (jnp.arange(axis.kept.shape[-1]) for axis in (y, x_))
        values = value(visited_y[:, None, None], visited_x[:, None])
        present = (position_y[region, row][:, None] < jnp.inf) & (position_x[region, column] < jnp.inf)
        values = jnp.where(present[..., None], values, -jnp.inf).reshape(present.size, channels)
        index = jnp.argmax(lax.stop_gradient(values), 0)
        largest = value(*jnp.divmod(index, visited_x.shape[0]))
        return jnp.where(present.any() & (image[region] >= 0), largest, 0)

    index = jnp.divmod(jnp.arange(rois.shape[0] * len(bins)), len(bins))
    pooled = lax.map(of_bin, index).reshape(rois.shape[0], *spec.output_size, channels)
    return jnp.where((in_batch & ~finite)[:, None, None, None], jnp.nan, pooled).astype(x.dtype)


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
    points = points_of_bins(rois, shift, spec, (height, width))
    axes = _AxisPoints(points[0], height, spec), _AxisPoints(points[1], width, spec)

    in_batch = (rois[:, 0] >= 0) & (rois[:, 0] < images)
    valid = in_batch & finite
    image = jnp.where(valid, rois[:, 0], -1).astype(jnp.int32)
    pixels = x.astype(rois.dtype).reshape(images, height, width, classes, features // classes, groups_y, groups_x)
    # A gather needs at least one element to gather from, even if no index selects it.
    pixels = jnp.pad(pixels, [(0, int(size == 0)) for size in pixels.shape[:3]] + [(0, 0)] * 4)
    total = (_sum_of_points if all(spec.points) else _sum_of_profiles)(pixels, image, axes, spec)
    count = axes[0].mean_of()[..., None] * axes[1].mean_of()[..., None]
    pooled = total / jnp.maximum(count, 1)
    # A shift that is NaN makes its bin NaN, and its own derivatives too.
    nan = jnp.isnan(shift).any(-1) & valid[:, None, None, None]
    pooled += (jnp.where(nan[..., None], shift, 0).sum(-1) ** 2)[..., None]
    pooled = pooled.reshape(*pooled.shape[:3], features)
    not_finite = (in_batch & ~finite)[:, None, None, None]
    return jnp.where(not_finite, jnp.nan, pooled).astype(x.dtype)


def _sum_of_points(
    pixels: jax.Array, image: jax.Array, axes: "tuple[_AxisPoints, _AxisPoints]", spec: Spec
) -> jax.Array:
    """The sums [R, out, out, classes, features of a class] over the points, by a gather of their corners.

    pixels [N, H, W, classes, features of a class, groups, groups]; image [R], -1 for a region that is not pooled.
    """
    height, classes, groups_y, groups_x = (pixels.shape[k] for k in (1, 3, 5, 6))
    # Every index into `pixels` is [R, out, out, classes, Sy, Sx].
    image = image[:, None, None, None, None, None]
    class_ = np.arange(classes)[:, None, None]
    group_y = scaled(spec.output_size[0], groups_y)[:, None, None, None, None]
    group_x = scaled(spec.output_size[1], groups_x)[:, None, None, None]
    y, x = axes
    kept = y.kept[..., :, None] & x.kept[..., None, :] & (image >= 0)
    total = jnp.zeros((*kept.shape[:4], pixels.shape[4]), pixels.dtype)
    for i, j in np.ndindex(2, 2):
        row = jnp.where(kept, y.pixel[i][..., :, None], height)
        column = x.pixel[j][..., None, :]
        index = (jnp.where(image < 0, pixels.shape[0], image), row, column, class_, slice(None), group_y, group_x)
        corner = pixels.at[index].get(mode="fill", fill_value=0)
        weight = jnp.where(kept, y.weight(i)[..., :, None] * x.weight(j)[..., None, :], 0)[..., None]
        total += (weight * _read(corner, weight)).sum((4, 5))
    return total


def _sum_of_profiles(
    pixels: jax.Array, image: jax.Array, axes: "tuple[_AxisPoints, _AxisPoints]", spec: Spec
) -> jax.Array:
    """The same for any number of points: each bin is a product of two profiles with an image, region by region."""
    # Bins [out] are [groups, bins of a group]: only the whole of x and one channel group a bin have adaptive points.
    split = [
        size
        for bins, groups in zip(spec.output_size, spec.group_size, strict=True)
        for size in (groups, bins // groups)
    ]

    def of_region(operands: Any) -> jax.Array:
        image, profile_y, profile_x = operands
        profile_y, profile_x = (profile.reshape(*split, *profile.shape[2:]) for profile in (profile_y, profile_x))
        # An image that is not read may hold NaN.
        own = jnp.where(image >= 0, pixels[jnp.maximum(image, 0)], 0)

        def contract(profile_y: jax.Array, profile_x: jax.Array, own: jax.Array) -> jax.Array:
            return jnp.einsum("aibjkh,aibjkw,hwkfab->aibjkf", profile_y, profile_x, own, precision="highest")

        total = contract(profile_y, profile_x, _finite(own))
        # Pixels without a weight may be infinite or NaN.
        reads_y, reads_x = ((lax.stop_gradient(profile) > 0).astype(own.dtype) for profile in (profile_y, profile_x))
        for value, is_value in ((jnp.inf, own == jnp.inf), (-jnp.inf, own == -jnp.inf), (jnp.nan, jnp.isnan(own))):
            total += jnp.where(contract(reads_y, reads_x, is_value.astype(own.dtype)) > 0, value, 0)
        return total.reshape(*spec.output_size, *total.shape[-2:])

    y, x = axes
    return lax.map(of_region, (image, y.profile(pixels.shape[1]), x.profile(pixels.shape[2])))


def _read(corner: jax.Array, weight: jax.Array) -> jax.Array:
    """The corners, with zeros for those that are not finite and have no weight: 0 times infinity would be NaN."""
    return jnp.where((weight == 0) & ~jnp.isfinite(corner), 0, corner)


@jax.custom_jvp
def _finite(x: jax.Array) -> jax.Array:
    """The finite elements of x, and zeros for the others. The derivative is that of x, because sums are linear in x."""
    return jnp.where(jnp.isfinite(x), x, 0)


@_finite.defjvp
def _finite_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return _finite(*primals), tangents[0]


class _AxisPoints:
    """The bins' points along one axis: the two neighbouring pixels, the fraction of the way, and which are valid.

    All are [R, out, out, classes, S].
    """

    def __init__(self, points: Points, size: Any, spec: Spec) -> None:
        rounded = spec.convention == "rounded"
        position, self._mean_of = points
        low, high = (-0.5, size - 0.5) if rounded else (-1, size)
        self.kept = (position >= low) & (position <= high) & (size > 0)
        last = max(size - 1, 0)
        position = jnp.where(self.kept, position, 0)
        if rounded:
            position = jnp.clip(position, 0, last)
            whole = jnp.floor(position)
            after = jnp.ceil(position)
        else:
            clamped = (position < 0) | (position >= last)
            position = jnp.where(clamped, lax.stop_gradient(jnp.clip(position, 0, last)), position)
            whole = jnp.floor(position)
            after = jnp.where(clamped, whole, whole + 1)

        def pixel(whole: jax.Array) -> jax.Array:
            return jnp.minimum(whole.astype(jnp.int32), last)  # which a float may have rounded up

        self.pixel = pixel(whole), pixel(after)
        self.fraction = position - whole

    def weight(self, i: int) -> jax.Array:
        return self.fraction if i else 1 - self.fraction

    def mean_of(self) -> jax.Array:
        """The number of points that the mean is over: [R, out, out, classes] or broadcastable to it."""
        return self.kept.sum(-1, dtype=self.fraction.dtype) if self._mean_of is None else self._mean_of

    def profile(self, size: Any) -> jax.Array:
        """The sum of the points' weights on each pixel: [R, out, out, classes, H or W]."""
        shape = self.kept.shape[:-1]
        index = tuple(lax.broadcasted_iota(jnp.int32, self.kept.shape, axis) for axis in range(len(shape)))
        profile = jnp.zeros((*shape, size), self.fraction.dtype)
        for i in range(2):
            profile = profile.at[(*index, self.pixel[i])].add(jnp.where(self.kept, self.weight(i), 0))
        return profile
