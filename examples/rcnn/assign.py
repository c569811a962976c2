"""Which boxes a stage is trained on, and which object each of them has; as in mmdet, but with fixed sizes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from examples.library.boxes import Boxes, iou

from .config import Selection

NEGATIVE, UNUSED = -1, -2


class Samples(NamedTuple):
    """A fixed number of regions per image: first those with an object, then the others.

    regions: [batch, n]; objects: the index of the object of each region, or `NEGATIVE`, or `UNUSED` for padding.
    """

    regions: Boxes
    objects: jax.Array


def assign(boxes: jax.Array, valid: jax.Array, truth: Boxes, settings: Selection) -> jax.Array:
    """The index of the object that each box [n] of one image has, or `NEGATIVE`, or `UNUSED`.

    truth: the objects' boxes [m, 4] and which of them are no padding.
    """
    overlap = jnp.where(truth.valid & valid[:, None], iou(boxes[:, None], truth.boxes), 0)
    most = overlap.max(1)
    objects = jnp.where(most < settings.negative, NEGATIVE, UNUSED)
    objects = jnp.where(most >= settings.positive, overlap.argmax(1), objects)
    most_of_object = overlap.max(0)
    is_best = (overlap == most_of_object) & (most_of_object >= settings.low_quality)
    last_best = is_best.shape[1] - 1 - is_best[:, ::-1].argmax(1)
    return jnp.where(valid, jnp.where(is_best.any(1), last_best, objects), UNUSED)


def sample(key: jax.Array, objects: jax.Array, settings: Selection) -> jax.Array:
    """The result [n] of `assign`, in which at most `settings.count` boxes stay, drawn at random, and others are
    `UNUSED`."""
    positive_key, negative_key = jax.random.split(key)
    positive = _draw(positive_key, objects >= 0, int(settings.count * settings.positive_fraction))
    negative = _draw(negative_key, objects == NEGATIVE, settings.count - positive.sum())
    return jnp.where(positive | negative, objects, UNUSED)


def sample_anchors(key: jax.Array, anchors: jax.Array, truth: Boxes, settings: Selection) -> jax.Array:
    """The object of each anchor [batch, n] that is drawn, or `NEGATIVE`, or `UNUSED`."""

    def of_image(key, truth):
        return sample(key, assign(anchors, jnp.ones(len(anchors), bool), truth, settings), settings)

    return jax.vmap(of_image)(jax.random.split(key, len(truth.boxes)), truth)


def sample_regions(key: jax.Array, proposals: Boxes, truth: Boxes, settings: Selection) -> Samples:
    """`settings.count` regions per image, drawn from its objects, each of which is its own, and its proposals."""

    def of_image(key, proposals, truth):
        boxes = jnp.concatenate([truth.boxes, proposals.boxes])
        own = jnp.where(truth.valid, jnp.arange(len(truth.valid)), UNUSED)
        objects = jnp.concatenate([own, assign(*proposals, truth, settings)])
        objects = sample(key, objects, settings)
        order = jnp.argsort(jnp.where(objects >= 0, 0, -objects), stable=True)[: settings.count]
        return Samples(Boxes(boxes[order], objects[order] != UNUSED), objects[order])

    return jax.vmap(of_image)(jax.random.split(key, len(truth.boxes)), proposals, truth)


def _draw(key, candidates, count):
    """At most `count` of the candidates [n], each with the same probability."""
    order = jnp.argsort(jnp.where(candidates, jax.random.uniform(key, candidates.shape), 2))
    rank = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))
    return candidates & (rank < count)
