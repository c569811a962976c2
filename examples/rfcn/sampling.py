"""Where the bins of a trained R-FCN's deformable pooling look."""

from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from examples.digits.backbone import STRIDE
from examples.digits.boxes import iou

from .model import RFCN, SAMPLES_PER_PART, TRANS_STD, Boxes


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
    """The region that is surest of an object of an image, among those that hold it; or the one nearest to doing so."""
    overlap = np.where(found.regions.valid[image], iou(found.regions.boxes[image], box), 0)
    return int((found.probability[image, :, label] * (overlap > 0.5) + 1e-6 * overlap).argmax())


def bin_points(box: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Points (x, y) in pixels of the image at which the bins of a region sample: [bins, bins, `SAMPLES_PER_PART`², 2].

    box: (x0, y0, x1, y1); offset: [bins, bins, 2] as (dx, dy). See `jax_dcn.deform_psroi_pool` for the formula.

    >>> bin_points(np.array([0, 0, 32, 32]), np.zeros((2, 2, 2)))[1, 0, :3].tolist()
    [[0.0, 16.0], [4.0, 16.0], [8.0, 16.0]]
    """
    bins = len(offset)
    first, end = np.floor(box[:2] + 0.5), np.floor(box[2:] + 0.5)
    size = np.maximum(end - first, 0.1 * STRIDE)
    row, column = np.meshgrid(np.arange(bins), np.arange(bins), indexing="ij")
    corner = first + np.stack([column, row], -1) * size / bins + offset * TRANS_STD * size
    y, x = np.meshgrid(np.arange(SAMPLES_PER_PART), np.arange(SAMPLES_PER_PART), indexing="ij")
    return corner[:, :, None] + np.stack([x, y], -1).reshape(-1, 2) * size / bins / SAMPLES_PER_PART
