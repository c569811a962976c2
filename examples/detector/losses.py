"""Assigns objects to locations, and computes the losses of scores and boxes."""

import jax
import jax.numpy as jnp
import optax

from examples.library.boxes import area, generalised_iou, iou

from .backbone import STRIDE, locations
from .model import Detector
from .scenes import Scenes

CENTRE_RADIUS = 1.5 * STRIDE
FOCUS = 2.0
NEGATIVE_WEIGHT = 0.75
BOX_WEIGHT = 2.0


def assign(locations: jax.Array, boxes: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The object that each location has to find.

    locations [cells, 2] as (x, y); boxes [objects, 4] and labels [objects] of one image, label -1 for no object.
    A location is responsible for an object if it is in the object's box and near its centre, or in the cell that
    contains the centre. Of several objects it takes the smallest. Returns the object's index, and whether the location
    is responsible for an object, each [cells].
    """
    points = locations[:, None]
    distance = jnp.abs(points - (boxes[:, :2] + boxes[:, 2:]) / 2).max(-1)
    inside = jnp.all((points > boxes[:, :2]) & (points < boxes[:, 2:]), -1)
    responsible = ((inside & (distance < CENTRE_RADIUS)) | (distance <= STRIDE / 2)) & (labels >= 0)
    smallest_first = jnp.where(responsible, area(boxes), jnp.inf)
    return smallest_first.argmin(-1), responsible.any(-1)


def loss(model: Detector, params: dict, batch: Scenes) -> jax.Array:
    """The mean loss per responsible location of a model on a batch of scenes.

    Scores are trained to predict the IoU of their box, by a focal loss with full weight on objects (varifocal loss,
    arXiv 2008.13367). Boxes are trained by their generalised IoU.
    """
    predictions = model.apply({"params": params}, batch.images)
    cells = locations(*batch.images.shape[1:3])
    objects, found = jax.vmap(assign, (None, 0, 0))(cells, batch.boxes, batch.labels)
    targets = jnp.take_along_axis(batch.boxes, objects[..., None], 1)
    classes = jax.nn.one_hot(jnp.take_along_axis(batch.labels, objects, 1), predictions.logits.shape[-1])
    overlap = jax.lax.stop_gradient(iou(predictions.boxes, targets))
    target_scores = classes * jnp.where(found, overlap, 0)[..., None]
    weight = jnp.where(target_scores > 0, target_scores, NEGATIVE_WEIGHT * jax.nn.sigmoid(predictions.logits) ** FOCUS)
    score_loss = weight * optax.sigmoid_binary_cross_entropy(predictions.logits, target_scores)
    box_loss = jnp.where(found, 1 - generalised_iou(predictions.boxes, targets), 0)
    return (score_loss.sum() + BOX_WEIGHT * box_loss.sum()) / jnp.maximum(found.sum(), 1)
