"""The targets of cells and regions, the losses of both stages, and training, whose data depends only on the seed."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.library.boxes import Boxes, area, encode, generalised_iou, iou
from examples.library.recipe import Recipe
from examples.library.training import Task

from . import scenes
from .backbone import STRIDE, locations
from .model import DELTA_SCALE, MIN_SIDE, RFCN, Predictions
from .scenes import Scenes

CENTRE_RADIUS = 1.5 * STRIDE
FOCUS, NEGATIVE_WEIGHT, BOX_WEIGHT = 2.0, 0.75, 2.0
REGION_OBJECT, HARD_REGIONS = 0.5, 32


def losses(model: RFCN, params: dict, batch: Scenes) -> dict[str, jax.Array]:
    """The losses of both stages of a model on a batch of scenes."""
    found = model.apply({"params": params}, batch.images, Boxes(batch.boxes, batch.labels >= 0))
    return {"objects": object_loss(found, batch), "regions": region_loss(found, batch)}


def object_loss(found: Predictions, batch: Scenes) -> jax.Array:
    """The mean loss of the first stage per cell that is responsible for an object.

    Scores are trained to predict the IoU of their box, by a focal loss with full weight on objects (varifocal loss,
    arXiv 2008.13367). Boxes are trained by their generalised IoU.
    """
    cells = locations(*batch.images.shape[1:3])
    objects, has_object = jax.vmap(assign, (None, 0, 0))(cells, batch.boxes, batch.labels)
    targets = jnp.take_along_axis(batch.boxes, objects[..., None], 1)
    score = jnp.where(has_object, jax.lax.stop_gradient(iou(found.object_boxes, targets)), 0)
    weight = jnp.where(score > 0, score, NEGATIVE_WEIGHT * jax.nn.sigmoid(found.object_logits) ** FOCUS)
    score_loss = weight * optax.sigmoid_binary_cross_entropy(found.object_logits, score)
    box_loss = jnp.where(has_object, 1 - generalised_iou(found.object_boxes, targets), 0)
    return (score_loss.sum() + BOX_WEIGHT * box_loss.sum()) / jnp.maximum(has_object.sum(), 1)


def assign(cells: jax.Array, boxes: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The object that each cell has to find, and whether it has to find one.

    cells: their centres [cells, 2] as (x, y); boxes [objects, 4] and labels [objects] of one image, -1 for no object.
    A cell is responsible for an object if its centre is in the object's box and near its centre, or if it contains the
    object's centre. Of several objects it takes the smallest. Both results are [cells].
    """
    points = cells[:, None]
    distance = jnp.abs(points - (boxes[:, :2] + boxes[:, 2:]) / 2).max(-1)
    inside = jnp.all((points > boxes[:, :2]) & (points < boxes[:, 2:]), -1)
    responsible = ((inside & (distance < CENTRE_RADIUS)) | (distance <= STRIDE / 2)) & (labels >= 0)
    return jnp.where(responsible, area(boxes), jnp.inf).argmin(-1), responsible.any(-1)


def region_loss(found: Predictions, batch: Scenes) -> jax.Array:
    """Cross-entropy of the classes and smooth L1 loss of the boxes, mean over each image's `HARD_REGIONS` regions where
    the loss is largest (online hard example mining, arXiv 1604.03540)."""
    regions, logits = found.regions, found.logits
    overlap = jnp.where(batch.labels[:, None] >= 0, iou(regions.boxes[:, :, None], batch.boxes[:, None]), 0)
    objects, has_object = overlap.argmax(-1), overlap.max(-1) >= REGION_OBJECT
    classes = jnp.where(has_object, jnp.take_along_axis(batch.labels, objects, 1), logits.shape[-1] - 1)
    boxes = jnp.take_along_axis(batch.boxes, objects[..., None], 1)
    targets = encode(boxes, regions.boxes, MIN_SIDE) / jnp.array(DELTA_SCALE)
    score = optax.softmax_cross_entropy_with_integer_labels(logits, classes)
    box = jnp.where(has_object, optax.huber_loss(found.deltas, targets).sum(-1), 0)
    hardest, _ = jax.lax.top_k(jnp.where(regions.valid, score + box, 0), HARD_REGIONS)
    return hardest.mean()


RECIPE = Recipe(
    steps=1600,
    batch_size=8,
    learning_rate=2e-3,
    offset_rate=0.3,
    warmup_from=0.0,
    cosine=True,
    weight_decay=1e-2,
    norm_decay=True,
    clip_norm=5.0,
    checkpoint_every=250,
)


@dataclass(frozen=True)
class Loss:
    """The losses of a batch, and the statistics of a model without any."""

    model: RFCN

    def __call__(
        self, variables: dict[str, Any], batch: scenes.Scenes, key: jax.Array
    ) -> tuple[dict[str, jax.Array], Any]:
        return losses(self.model, variables["params"], batch), variables["batch_stats"]


def task_of(model: RFCN, recipe: Recipe) -> Task:
    """What is trained, from random weights."""
    images = np.zeros((1, scenes.IMAGE_SIZE, scenes.IMAGE_SIZE, 3), np.uint8)
    variables = jax.jit(model.init)(jax.random.key(recipe.seed), images)
    return Task(recipe, variables, Loss(model), partial(scenes.training_batches, recipe.seed, recipe.batch_size))
