"""The bins of the deformable pooling in a trained R-FCN."""

from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from examples.library.boxes import Boxes, iou

from .model import RFCN


class Moves(NamedTuple):
    """The regions of images and how their bins move, in units of `TRANS_STD` times the region's size.

    of_class: [batch, regions, bins, bins, classes + 1, 2] as (dx, dy); of_box: [batch, regions, bins, bins, 2];
    probability: [batch, regions, classes + 1].
    """

    regions: Boxes
    probability: jax.Array
    of_class: jax.Array
    of_box: jax.Array


@partial(jax.jit, static_argnums=0)
def moves(model: RFCN, params: dict, images: jax.Array) -> Moves:
    """What a model with deformable pooling predicts for images [batch, height, width, 3]."""
    found, sown = model.apply({"params": params}, images, mutable=["intermediates"])
    shape = (*found.regions.valid.shape, model.bins, model.bins)
    (of_class,), (of_box,) = (sown["intermediates"][f"{name}_offset"] for name in ("class", "box"))
    probability = jax.nn.softmax(found.logits)
    return Moves(found.regions, probability, of_class.reshape(*shape, -1, 2), of_box.reshape(*shape, 2))


def region_of(found: Moves, image: int, box: np.ndarray, label: int) -> int:
    """The region with the highest probability among those that contain an object, or else the one closest to it."""
    overlap = np.where(found.regions.valid[image], iou(found.regions.boxes[image], box), 0)
    return int((found.probability[image, :, label] * (overlap > 0.5) + 1e-6 * overlap).argmax())
