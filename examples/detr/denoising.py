"""Contrastive denoising: queries made of targets with noise, whose assignment is known (DINO, arXiv 2203.03605).

The original codes make 2 K groups queries, where K is the largest number of targets of an image: this number changes
from batch to batch. Inside `jit` it cannot. So there are always 2 max(num_denoising, m) queries, and those that the
original does not have are hidden from all others and have no loss.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from examples.library.boxes import centre_to_corners, corners_to_centre

from .config import RTDetrConfig
from .decoder import inverse_sigmoid
from .matching import Targets


class Draws(NamedTuple):
    """The random numbers of the noise.

    label_uniform: [batch, d] in [0, 1); new_label: int32 [batch, d], any class; sign: bool [batch, d, 4]; part:
    [batch, d, 4] in [0, 1).
    """

    label_uniform: jax.Array
    new_label: jax.Array
    sign: jax.Array
    part: jax.Array


class Denoising(NamedTuple):
    """Denoising queries, which stand before the n ordinary ones.

    classes: int32 [batch, d], the number of classes for padding; boxes: [batch, d, 4] as logits; hidden: bool
    [d + n, d + n], whether the query of a row does not see that of a column; targets: int32 [batch, d], the target that
    a query should find, -1 for none; present: bool [d], which queries have a loss; groups: int32, the number of
    positive queries of each target.
    """

    classes: jax.Array
    boxes: jax.Array
    hidden: jax.Array
    targets: jax.Array
    present: jax.Array
    groups: jax.Array


def count(num_denoising: int, targets: Targets) -> int:
    """The number d of denoising queries."""
    return 2 * max(num_denoising, targets.labels.shape[1])


def draw(key: jax.Array, queries: int, targets: Targets, classes: int) -> Draws:
    """The random numbers for so many denoising queries."""
    keys, shape = jax.random.split(key, 4), (len(targets.labels), queries)
    dtype = targets.boxes.dtype
    return Draws(
        jax.random.uniform(keys[0], shape, dtype),
        jax.random.randint(keys[1], shape, 0, classes),
        jax.random.bernoulli(keys[2], shape=(*shape, 4)),
        jax.random.uniform(keys[3], (*shape, 4), dtype),
    )


def make_denoising(draws: Draws, targets: Targets, config: RTDetrConfig) -> Denoising:
    """Denoising queries for the targets of a batch, by these settings of a model:

    num_denoising: about how many positive ones an image gets. label_noise_ratio: twice the share of classes that are
    replaced. box_noise_scale: how far the corners of positive queries move at most, in half sides of the box; those of
    negative queries move once to twice as far. flips_negative_sizes: whether a box whose corners have changed places
    has its size without the sign, as in D-FINE; in RT-DETR it has no size.
    """
    counts = targets.valid.sum(1, dtype=jnp.int32)
    most = counts.max(initial=0)
    width = jnp.maximum(most, 1)
    groups = jnp.maximum(config.num_denoising // width, 1)
    number = jnp.arange(draws.part.shape[1])
    target, group, is_negative = number % width, number // (2 * width), number // width % 2 == 1
    present = number < 2 * most * groups
    is_object = present & (target < counts[:, None])
    own = targets.of(jnp.where(is_object, target, -1))

    has_new_label = is_object & (draws.label_uniform < config.label_noise_ratio / 2)
    labels = jnp.where(is_object, own.labels, config.num_labels)
    labels = jnp.where(has_new_label, draws.new_label, labels)

    boxes = jnp.where(is_object[..., None], own.boxes, 0)
    half = jnp.tile(boxes[..., 2:], 2) / 2 * config.box_noise_scale
    shift = (draws.part + is_negative[:, None]) * jnp.where(draws.sign, half, -half)
    noisy = corners_to_centre(jnp.clip(centre_to_corners(boxes) + shift, 0, 1))
    noisy = jnp.abs(noisy) if config.flips_negative_sizes else noisy

    other_group = group[:, None] != group
    hidden = jnp.pad(other_group | ~present, (0, config.num_queries))
    hidden = hidden.at[len(number) :, : len(number)].set(True)
    found = jnp.where(is_object & ~is_negative, target, -1)
    return Denoising(labels, inverse_sigmoid(jnp.clip(noisy, 0, 1)), hidden, found, present, groups)
