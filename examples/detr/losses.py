"""The losses of classes and boxes, for each query."""

import jax
import jax.numpy as jnp
import optax

from examples.library.boxes import centre_to_corners, generalised_iou, iou

from .matching import Targets

LEAST_TARGET = 0.01


def varifocal(
    logits: jax.Array, labels: jax.Array, quality: jax.Array, alpha: float = 0.75, gamma: float = 2.0
) -> jax.Array:
    """The varifocal loss of each class (Zhang et al., arXiv 2008.13367), with the shape of logits [..., classes].

    The score of the class of a label [...] should be the quality [...] of its box. Scores of all other classes, and of
    queries with label -1, should be 0. No gradient reaches the quality and the weights.
    """
    target = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    score = jax.lax.stop_gradient(quality)[..., None] * target
    weight = alpha * jax.nn.sigmoid(jax.lax.stop_gradient(logits)) ** gamma * (1 - target) + score
    return weight * optax.sigmoid_binary_cross_entropy(logits, score)


def iou_aware(
    logits: jax.Array, labels: jax.Array, quality: jax.Array, alpha: float = 0.25, gamma: float = 2.0
) -> jax.Array:
    """The IoU-aware binary cross-entropy of each class (LW-DETR, arXiv 2406.03459), with the shape of logits [...,
    classes].

    The target of the class of a label [...] is a geometric mean of its score and the quality [...] of its box, at least
    `LEAST_TARGET`, which gets no gradient. Scores of other classes, and of queries with label -1, should be 0; their
    weights, powers of the scores, get one.
    """
    is_own = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    scores = jax.nn.sigmoid(logits)
    mean = scores**alpha * quality[..., None] ** (1 - alpha)
    target = jnp.where(is_own, jax.lax.stop_gradient(jnp.maximum(mean, LEAST_TARGET)), 0)
    others = jnp.where(is_own, 1 - target, scores**gamma)
    return -target * jax.nn.log_sigmoid(logits) - others * jax.nn.log_sigmoid(-logits)


def box_losses(boxes: jax.Array, own: Targets) -> tuple[jax.Array, jax.Array]:
    """The L1 and the GIoU loss, each [batch, queries], 0 for queries without a target."""
    boxes = jnp.where(own.valid[..., None], boxes, own.boxes)
    l1 = jnp.abs(boxes - own.boxes).sum(-1)
    giou = generalised_iou(centre_to_corners(boxes), centre_to_corners(own.boxes))
    return l1, jnp.where(own.valid, 1 - giou, 0)


def box_quality(boxes: jax.Array, own: Targets) -> jax.Array:
    """The IoU of each query's box and its target [batch, queries], 0 for queries without one; without gradient."""
    overlap = iou(centre_to_corners(jax.lax.stop_gradient(boxes)), centre_to_corners(own.boxes))
    return jnp.where(own.valid, overlap, 0)
