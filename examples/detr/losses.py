"""The losses of classes and boxes, for each query; and D-FINE's boxes as distributions of distances (Peng et al., arXiv
2410.13842), and their losses.

A reference box has a centre and a size. The distance of each side of a box from that centre is the mean of a
distribution over bins, whose places `bin_places` are closer together near 0.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.library.boxes import centre_to_corners, corners_to_centre, generalised_iou, iou

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


def matchability_aware(logits: jax.Array, labels: jax.Array, quality: jax.Array, gamma: float = 1.5) -> jax.Array:
    """The matchability-aware loss of each class (DEIM, arXiv 2412.04234), with the shape of logits [..., classes].

    As `varifocal`, but the score of the class of a label should be a power of the quality, and has weight 1.
    """
    is_own = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    score = jnp.where(is_own, jax.lax.stop_gradient(quality)[..., None] ** gamma, 0)
    weight = jnp.where(is_own, 1, jax.nn.sigmoid(jax.lax.stop_gradient(logits)) ** gamma)
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


TINY = 1e-16


@dataclass(frozen=True)
class Distribution:
    """The bins, by the names of transformers' config: bins + 1 places, of which the outer two are far."""

    max_num_bins: int = 32
    up: float = 0.5
    reg_scale: float = 4.0

    @property
    def bin_places(self) -> np.ndarray:
        """The distances [bins + 1] that the bins stand for, relative to side / reg_scale of the reference box."""
        bound = self.up * self.reg_scale
        half = self.max_num_bins // 2
        step = (bound + 1) ** (2 / (self.max_num_bins - 2))
        inner = step ** np.arange(1, half) - 1
        return np.concatenate([[-2 * bound], -inner[::-1], [0], inner, [2 * bound]])

    def boxes(self, reference: jax.Array, corners: jax.Array) -> jax.Array:
        """Boxes [..., 4] from reference boxes [..., 4] and logits [..., 4, bins + 1] of the four distances."""
        places = jnp.asarray(self.bin_places, corners.dtype)
        distances = jax.nn.softmax(corners) @ places + self.reg_scale / 2
        centre, size = jnp.split(reference, 2, -1)
        low, high = jnp.split(distances, 2, -1)
        unit = size / self.reg_scale
        return corners_to_centre(jnp.concatenate([centre - low * unit, centre + high * unit], -1))

    def targets(self, reference: jax.Array, boxes: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The lower of two neighbouring bins, int32 [..., 4], and the weight [..., 4] of the upper one, whose mean is
        the distance of each side of boxes [..., 4] from the reference [..., 4]."""
        centre, size = jnp.split(reference, 2, -1)
        low, high = jnp.split(centre_to_corners(boxes), 2, -1)
        unit = size / self.reg_scale + TINY
        distances = jnp.concatenate([(centre - low) / unit, (high - centre) / unit], -1) - self.reg_scale / 2
        places = jnp.asarray(self.bin_places, distances.dtype)
        left = (places <= distances[..., None]).sum(-1, dtype=jnp.int32) - 1
        inside = jnp.clip(left, 0, self.max_num_bins - 1)
        upper = (distances - places[inside]) / (places[inside + 1] - places[inside])
        return inside, jnp.clip(upper, 0, 1)


def fine_grained_localisation(
    corners: jax.Array, boxes: jax.Array, reference: jax.Array, own: Targets, distribution: Distribution
) -> jax.Array:
    """The cross-entropy of both bins next to each distance, weighted by IoU: [batch, queries]."""
    lower, upper_weight = jax.lax.stop_gradient(distribution.targets(reference, own.boxes))
    logs = jax.nn.log_softmax(corners)
    at_lower, at_upper = (jnp.take_along_axis(logs, bins[..., None], -1)[..., 0] for bins in (lower, lower + 1))
    entropy = -(at_lower * (1 - upper_weight) + at_upper * upper_weight).sum(-1)
    return box_quality(boxes, own) * entropy


def distillation(corners: jax.Array, teacher: jax.Array, quality: jax.Array, temperature: float) -> jax.Array:
    """How far the distributions [batch, queries, 4, bins + 1] are from those of the teacher: [batch, queries].

    It is the divergence at a temperature (Hinton et al., arXiv 1503.02531), as a mean over the four sides, weighted by
    quality [batch, queries].
    """
    taught = jax.nn.log_softmax(jax.lax.stop_gradient(teacher) / temperature)
    learned = jax.nn.log_softmax(corners / temperature)
    divergence = (jnp.exp(taught) * (taught - learned)).sum(-1).mean(-1)
    return temperature**2 * jax.lax.stop_gradient(quality) * divergence
