"""Which target each query is trained on: the assignment of least cost, one to one, inside `jit`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from examples.library.boxes import centre_to_corners, generalised_iou

LOG_EPSILON = 1e-8
CLASS_WEIGHT, L1_WEIGHT, GIOU_WEIGHT = 2.0, 5.0, 2.0  # of the costs, in all models
ALPHA, GAMMA = 0.25, 2.0  # of the focal cost of classes


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


def assign(costs: jax.Array, valid: jax.Array) -> jax.Array:
    """The index of the target of each query, int32 [batch, queries], -1 for queries without a target.

    costs: [batch, queries, m]; valid: bool [batch, m], which targets are no padding. The sum of the costs is the least
    of all assignments in which each valid target has a query of its own, or each query a valid target if these are
    more. Costs that are not finite count as larger than all others.
    """
    if 0 in costs.shape:
        return jnp.full(costs.shape[:2], -1, jnp.int32)
    known = valid[:, None] & jnp.isfinite(costs)
    largest = jnp.max(costs, axis=(1, 2), keepdims=True, where=known, initial=0)
    # A query takes a valid target rather than padding, because exchanging them lowers the sum.
    costs = jnp.where(known, costs, largest + 1)
    queries, chosen = jax.vmap(optax.assignment.hungarian_algorithm)(costs)
    chosen = jnp.where(jnp.take_along_axis(valid, chosen, 1), chosen, -1)
    free = jnp.full(costs.shape[:2], -1, jnp.int32)
    return jax.vmap(lambda row, index, value: row.at[index].set(value.astype(jnp.int32)))(free, queries, chosen)


def match(logits: jax.Array, boxes: jax.Array, targets: Targets) -> jax.Array:
    """The index of the target of each query [sets, batch, queries], -1 for queries without a target.

    logits, boxes: [sets, batch, queries, ...], such as the predictions of all layers; each set has its own assignment.
    """
    logits, boxes = jax.lax.stop_gradient((logits, boxes))

    def of_images(logits, boxes, targets):
        costs = jax.vmap(lambda *found: pair_costs(*found, targets))(logits, boxes)
        flat = assign(costs.reshape(-1, *costs.shape[2:]), jnp.tile(targets.valid, (len(costs), 1)))
        return flat.reshape(costs.shape[:3])

    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or logits.shape[1] % mesh.size or any(kind != AxisType.Auto for kind in mesh.axis_types):
        return of_images(logits, boxes, targets)
    # Each device assigns the targets of its images. Otherwise devices would agree on the end of each loop.
    images = P(None, mesh.axis_names)
    specs = {"in_specs": (images, images, P(mesh.axis_names)), "out_specs": images}
    return jax.shard_map(of_images, mesh=mesh, check_vma=False, **specs)(logits, boxes, targets)
