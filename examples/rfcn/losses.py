"""The targets of anchors and regions, and the losses of both stages."""

import jax
import jax.numpy as jnp
import optax

from examples.digits_library.scenes import Scenes
from examples.library.boxes import Boxes, encode, iou

from .model import DELTA_SCALE, RFCN, Predictions, anchors

ANCHOR_OBJECT, ANCHOR_BACKGROUND = 0.5, 0.4
REGION_OBJECT = 0.5
HARD_REGIONS = 32
BOX_WEIGHT = 1.0


def loss(model: RFCN, params: dict, batch: Scenes) -> jax.Array:
    """The loss of a model on a batch of scenes."""
    true_boxes = Boxes(batch.boxes, batch.labels >= 0)
    predictions = model.apply({"params": params}, batch.images, true_boxes)
    return proposal_loss(predictions, batch) + region_loss(predictions, batch)


def proposal_loss(predictions: Predictions, batch: Scenes) -> jax.Array:
    """Focal loss of the anchors' objects and smooth L1 loss of their boxes, per anchor that has an object."""
    bases = anchors(*batch.images.shape[1:3])
    objects, is_object, is_background = jax.vmap(match_anchors, (None, 0, 0))(bases, batch.boxes, batch.labels)
    logits = predictions.anchor_logits
    score = optax.sigmoid_focal_loss(logits, is_object.astype(logits.dtype), alpha=0.25, gamma=2.0)
    targets = encode(jnp.take_along_axis(batch.boxes, objects[..., None], 1), bases)
    box = optax.huber_loss(predictions.anchor_deltas, targets, delta=0.1).sum(-1) / 0.1
    total = jnp.where(is_object | is_background, score, 0).sum() + jnp.where(is_object, box, 0).sum()
    return total / jnp.maximum(is_object.sum(), 1)


def match_anchors(bases: jax.Array, boxes: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """For each anchor of one image [anchors]: its object, whether it has one, and whether it certainly has none.

    An anchor has an object if no other anchor overlaps that object more. Otherwise it has the object that it overlaps
    most, if the overlap is large enough.
    """
    overlap = jnp.where(labels >= 0, iou(bases[:, None], boxes), 0)
    best_of_object = (overlap == overlap.max(0)) & (overlap > 0)
    objects = jnp.where(best_of_object.any(1), best_of_object.argmax(1), overlap.argmax(1))
    most = overlap.max(1)
    is_object = (most >= ANCHOR_OBJECT) | best_of_object.any(1)
    return objects, is_object, (most < ANCHOR_BACKGROUND) & ~is_object


def region_loss(predictions: Predictions, batch: Scenes) -> jax.Array:
    """Cross-entropy of the classes and smooth L1 loss of the boxes, mean over each image's `HARD_REGIONS` regions where
    the loss is largest (online hard example mining, arXiv 1604.03540)."""
    regions, logits = predictions.regions, predictions.logits
    overlap = jnp.where(batch.labels[:, None] >= 0, iou(regions.boxes[:, :, None], batch.boxes[:, None]), 0)
    objects, is_object = overlap.argmax(-1), overlap.max(-1) >= REGION_OBJECT
    none = logits.shape[-1] - 1
    classes = jnp.where(is_object, jnp.take_along_axis(batch.labels, objects, 1), none)
    targets = encode(jnp.take_along_axis(batch.boxes, objects[..., None], 1), regions.boxes) / jnp.array(DELTA_SCALE)
    score = optax.softmax_cross_entropy_with_integer_labels(logits, classes)
    box = jnp.where(is_object, optax.huber_loss(predictions.deltas, targets).sum(-1), 0)
    each = jnp.where(regions.valid, score + BOX_WEIGHT * box, 0)
    hardest, _ = jax.lax.top_k(each, min(HARD_REGIONS, each.shape[1]))
    return hardest.mean()
