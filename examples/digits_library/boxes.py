"""Boxes (x0, y0, x1, y1) in pixels: overlap measures and non-maximum suppression of a fixed size."""

import jax
import jax.numpy as jnp


def area(boxes: jax.Array) -> jax.Array:
    """Areas [...] of boxes [..., 4].

    >>> area(jnp.array([1.0, 1.0, 3.0, 4.0])).item()
    6.0
    """
    return jnp.prod(boxes[..., 2:] - boxes[..., :2], -1)


def iou(a: jax.Array, b: jax.Array) -> jax.Array:
    """Intersection over union of boxes [..., 4], broadcast against each other."""
    intersection, union = _intersection_and_union(a, b)
    return intersection / union


def generalised_iou(a: jax.Array, b: jax.Array) -> jax.Array:
    """Generalised IoU (arXiv 1902.09630) of boxes [..., 4] in [-1, 1]; it falls with the distance of disjoint boxes."""
    intersection, union = _intersection_and_union(a, b)
    low, high = jnp.minimum(a[..., :2], b[..., :2]), jnp.maximum(a[..., 2:], b[..., 2:])
    hull = jnp.prod(high - low, -1) + _TINY
    return intersection / union - (hull - union) / hull


def suppress(boxes: jax.Array, scores: jax.Array, classes: jax.Array, threshold: float) -> jax.Array:
    """Greedy non-maximum suppression within classes.

    boxes [n, 4], scores [n] in descending order and classes [n] of one image; returns the scores, with 0 for
    suppressed boxes.
    """
    later = jnp.arange(len(scores))[:, None] < jnp.arange(len(scores))
    rivals = later & (classes[:, None] == classes) & (iou(boxes[:, None], boxes) > threshold)
    kept = jax.lax.fori_loop(0, len(scores), lambda i, kept: kept & ~(kept[i] & rivals[i]), scores > 0)
    return jnp.where(kept, scores, 0)


_TINY = 1e-6


def _intersection_and_union(a, b):
    sides = jnp.minimum(a[..., 2:], b[..., 2:]) - jnp.maximum(a[..., :2], b[..., :2])
    intersection = jnp.prod(jnp.maximum(sides, 0), -1)
    return intersection, area(a) + area(b) - intersection + _TINY
