"""Which target each query is trained on: the assignment of least cost, one to one, inside `jit`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from examples.library.boxes import centre_to_corners, generalised_iou
from jax_dcn import linear_sum_assignment

LOG_EPSILON = 1e-8
CLASS_WEIGHT, L1_WEIGHT, GIOU_WEIGHT = 2.0, 5.0, 2.0  # of the costs, in all models
ALPHA, GAMMA = 0.25, 2.0  # of the focal cost of classes
HIGHEST_COST = 1e6  # of a prediction that is not finite, whose target must not vanish from the losses


class Targets(NamedTuple):
    """The objects of a batch of images, padded to one number.

    boxes: [batch, m, 4], (centre x, centre y, width, height) in fractions of the image; labels: int32 [batch, m], -1
    for padding, which comes after all objects of an image.
    """

    boxes: jax.Array
    labels: jax.Array

    @property
    def valid(self) -> jax.Array:
        """Which targets are no padding: bool [batch, m]."""
        return self.labels >= 0

    def of(self, assigned: jax.Array) -> "Targets":
        """The target of each query, from the index [batch, queries] of its target, -1 for a query that has none."""
        index = jnp.maximum(assigned, 0)
        boxes = jnp.take_along_axis(self.boxes, index[..., None], 1)
        labels = jnp.take_along_axis(self.labels, index, 1)
        return Targets(boxes, jnp.where(assigned >= 0, labels, -1))


def pair_costs(logits: jax.Array, boxes: jax.Array, targets: Targets) -> jax.Array:
    """The costs [batch, queries, m] of predictions [batch, queries, ...] and targets.

    The cost of a class is the focal loss of a positive without that of a negative, as in Deformable DETR (arXiv
    2010.04159).
    """
    scores = jax.nn.sigmoid(logits)
    positive = -ALPHA * (1 - scores) ** GAMMA * jnp.log(scores + LOG_EPSILON)
    negative = -(1 - ALPHA) * scores**GAMMA * jnp.log(1 - scores + LOG_EPSILON)
    labels = jnp.broadcast_to(jnp.maximum(targets.labels, 0)[:, None], (*boxes.shape[:2], targets.labels.shape[1]))
    of_class = jnp.take_along_axis(positive - negative, labels, -1)
    mine, theirs = boxes[:, :, None], targets.boxes[:, None]
    l1 = jnp.abs(mine - theirs).sum(-1)
    giou = generalised_iou(centre_to_corners(mine), centre_to_corners(theirs))
    return CLASS_WEIGHT * of_class + L1_WEIGHT * l1 - GIOU_WEIGHT * giou


def match(logits: jax.Array, boxes: jax.Array, targets: Targets) -> jax.Array:
    """The index of the target of each query, int32 [sets, batch, queries], -1 for queries without a target.

    The sum of the costs is the least of all assignments in which each valid target has a query of its own, or each
    query a valid target if these are more. Costs that are not finite count as larger than all others.

    logits, boxes: [sets, batch, queries, ...], such as the predictions of all layers; each set has its own assignment.
    """
    logits, boxes = jax.lax.stop_gradient((logits, boxes))
    costs = jax.vmap(lambda *found: pair_costs(*found, targets))(logits, boxes)
    known = jnp.nan_to_num(costs, nan=HIGHEST_COST, posinf=HIGHEST_COST, neginf=HIGHEST_COST)
    return linear_sum_assignment(jnp.where(targets.valid[:, None], known, jnp.inf))
