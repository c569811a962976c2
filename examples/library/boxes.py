"""Boxes (x0, y0, x1, y1) in pixels: a padded set of them, overlap, and encoding."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Boxes(NamedTuple):
    """A fixed number of boxes per image, some of which are padding.

    boxes: [batch, n, 4]; valid: bool [batch, n].
    """

    boxes: jax.Array
    valid: jax.Array


def area(boxes: jax.Array) -> jax.Array:
    """Areas [...] of boxes [..., 4].

    >>> area(jnp.array([1.0, 1.0, 3.0, 4.0])).item()
    6.0
    """
    return jnp.prod(boxes[..., 2:] - boxes[..., :2], -1)


def centre_to_corners(boxes: jax.Array) -> jax.Array:
    """Boxes (centre x, centre y, width, height) [..., 4] as (x0, y0, x1, y1). Sizes below 0, which an untrained D-FINE
    predicts, count as 0.

    >>> centre_to_corners(jnp.array([2.0, 5.0, 4.0, 8.0])).tolist()
    [0.0, 1.0, 4.0, 9.0]
    """
    centre, half = boxes[..., :2], jnp.where(boxes[..., 2:] < 0, 0, boxes[..., 2:] / 2)
    return jnp.concatenate([centre - half, centre + half], -1)


def corners_to_centre(boxes: jax.Array) -> jax.Array:
    """The inverse of `centre_to_corners`."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return jnp.concatenate([(low + high) / 2, high - low], -1)


def iou(a: jax.Array, b: jax.Array) -> jax.Array:
    """Intersection over union of boxes [..., 4], broadcast against each other."""
    intersection, union = _intersection_and_union(a, b)
    return intersection / union


def generalised_iou(a: jax.Array, b: jax.Array) -> jax.Array:
    """Generalised IoU (arXiv 1902.09630) of boxes [..., 4] in [-1, 1]; it falls with the distance of disjoint boxes."""
    intersection, union = _intersection_and_union(a, b)
    low, high = jnp.minimum(a[..., :2], b[..., :2]), jnp.maximum(a[..., 2:], b[..., 2:])
    hull = jnp.maximum(jnp.prod(high - low, -1), _TINY)
    return intersection / union - (hull - union) / hull


def clip(boxes: jax.Array, height: int, width: int) -> jax.Array:
    """Boxes [..., 4], clipped to the image."""
    return jnp.clip(boxes, 0, jnp.array([width, height, width, height]))


def encode(boxes: jax.Array, base: jax.Array, min_side: float) -> jax.Array:
    """Boxes [..., 4] relative to base [..., 4]: shift of the centre (x, y) in sides of the base, and log scales (x, y).

    The parametrisation of R-CNN (arXiv 1311.2524, equations 6 to 9). Sides below `min_side` pixels count as that long.
    """
    centre, size = _centre_and_size(boxes, min_side)
    base_centre, base_size = _centre_and_size(base, min_side)
    return jnp.concatenate([(centre - base_centre) / base_size, jnp.log(size / base_size)], -1)


def decode(deltas: jax.Array, base: jax.Array, min_side: float, max_log_scale: float) -> jax.Array:
    """The inverse of `encode`, with log scales clipped to a range around 0.

    >>> box, base = jnp.array([2.0, 1.0, 6.0, 9.0]), jnp.array([0.0, 0.0, 8.0, 4.0])
    >>> bool(jnp.allclose(decode(encode(box, base, 1.0), base, 1.0, 2.0), box))
    True
    """
    base_centre, base_size = _centre_and_size(base, min_side)
    centre = base_centre + deltas[..., :2] * base_size
    half = base_size * jnp.exp(jnp.clip(deltas[..., 2:], -max_log_scale, max_log_scale)) / 2
    return jnp.concatenate([centre - half, centre + half], -1)


_TINY = 1e-12  # an area that is never that of a real box


def _intersection_and_union(a, b):
    sides = jnp.minimum(a[..., 2:], b[..., 2:]) - jnp.maximum(a[..., :2], b[..., :2])
    intersection = jnp.prod(jnp.maximum(sides, 0), -1)
    return intersection, jnp.maximum(area(a) + area(b) - intersection, _TINY)


def _centre_and_size(boxes, min_side):
    low, high = boxes[..., :2], boxes[..., 2:]
    return (low + high) / 2, jnp.maximum(high - low, min_side)
