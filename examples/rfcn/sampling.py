"""The bins of the deformable pooling in a trained R-FCN, and a picture of their sampling locations."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from examples.digits_library import scenes
from examples.digits_library.backbone import STRIDE
from examples.digits_library.evaluate import SIZE_LIMITS
from examples.digits_library.pictures import clearest_object, zoom
from examples.library.boxes import Boxes, iou
from jax_dcn import viz

from .model import RFCN, SAMPLES_PER_PART, TRANS_STD, as_rois


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


def draw_bins(folder: Path, model: RFCN, params: dict, batch: scenes.Scenes) -> None:
    """Draws the sampling points of all bins, for the class and for the box, of a small, a medium and a large object."""
    found = jax.device_get(moves(model, params, batch.images))
    figure = Figure(figsize=(13.5, 9.6), layout="constrained")
    axes = figure.subplots(2, len(SIZE_LIMITS), squeeze=False)
    for size, name in enumerate(SIZE_LIMITS):
        image, which = clearest_object(batch, size)
        label, true_box = int(batch.labels[image, which]), batch.boxes[image, which]
        region = region_of(found, image, true_box, label)
        roi = as_rois(Boxes(*(part[image, region] for part in found.regions)))
        shifts = found.of_class[image, region, :, :, label], found.of_box[image, region]
        titles = f"is it a {scenes.CLASSES[label]}?", "where are its sides?"
        for panel, title, shift in zip(axes[:, size], titles, shifts, strict=True):
            viz.plot_bins(
                roi,
                shift,
                output_size=len(shift),
                spatial_scale=1 / STRIDE,
                sample_per_part=SAMPLES_PER_PART,
                trans_std=TRANS_STD,
                image=batch.images[image],
                ax=panel,
            )
            panel.set_axis_off()
            zoom(panel, true_box, batch.images.shape[1], window=1.8 * (true_box[2:] - true_box[:2]).max())
            panel.set_title(f"{name} object: {title}", fontsize=14)
    figure.suptitle("The bins of a region, and the points that each averages: moved as learnt", fontsize=16)
    figure.savefig(folder / "bins.png", dpi=90)
