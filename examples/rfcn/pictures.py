"""A picture of what an R-FCN detects in scenes, and where the bins of its pooling are."""

from functools import partial
from pathlib import Path

import jax
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples.library.boxes import Boxes, iou
from examples.library.objects import draw_box
from jax_dcn import viz

from . import evaluate, scenes
from .backbone import STRIDE
from .model import BINS, RFCN, SAMPLES_PER_PART, TRANS_STD, Detections, as_rois, detect

SHOWN_SCORE = 0.3
PICTURED_SCENES = 8
WINDOW = 1.8  # the sides of a panel of bins, in those of the object
PALETTE = matplotlib.colormaps["tab10"]


def draw(path: Path, model: RFCN, params: dict) -> None:
    """Draws scenes with a small, a medium and a large object, and the bins of its class and of its sides.

    Each bin averages the points of its colour. An arrow starts where plain pooling would place the bin.
    """
    sizes = list(evaluate.SIZE_LIMITS)
    figure = Figure(figsize=(13.5, 14), layout="constrained")
    for size, (detections, of_class, of_sides) in enumerate(figure.subplots(3, len(sizes)).T):
        numbers = range(size, PICTURED_SCENES * len(sizes), len(sizes))
        batch = scenes.make_batch("validation", evaluate.VALIDATION_SEED, numbers)
        image, which = clearest_object(batch, size)
        label, box = int(batch.labels[image, which]), batch.boxes[image, which]
        pixels = batch.images[image]
        draw_scene(detections, pixels, jax.tree.map(lambda x, i=image: x[i], detect(model, params, batch.images)))
        detections.set_title("detections", fontsize=14)
        roi, offsets = bins_of(model, params, pixels, box, label)
        questions = f"is it a {scenes.CLASSES[label]}?", "where are its sides?"
        classes = (label if model.deformable_pooling else 0), 0  # plain pooling has the same bins for all classes
        panels = zip((of_class, of_sides), questions, offsets, classes, strict=True)
        for panel, question, offset, class_index in panels:
            viz.plot_bins(
                roi,
                offset,
                output_size=BINS,
                spatial_scale=1 / STRIDE,
                sample_per_part=SAMPLES_PER_PART,
                trans_std=TRANS_STD,
                class_index=class_index,
                image=pixels,
                ax=panel,
            )
            zoom(panel, box, pixels.shape[0])
            panel.set_axis_off()
            panel.set_title(f"a {sizes[size]} object: {question}", fontsize=14)
    figure.savefig(path, dpi=80)


@partial(jax.jit, static_argnums=0)
def _found(model, params, image):
    return model.apply({"params": params}, image[None], mutable=["intermediates"])


def bins_of(
    model: RFCN, params: dict, image: np.ndarray, box: np.ndarray, label: int
) -> tuple[np.ndarray, tuple[np.ndarray | None, ...]]:
    """The region of an object, as the pooling takes it, and the offsets of the bins of classes and of sides there.

    It is the one with the highest probability among those that contain the object, or else the one closest to it. Plain
    pooling has no offsets.
    """
    found, sown = jax.device_get(_found(model, params, image))
    regions = Boxes(*(part[0] for part in found.regions))
    overlap = np.where(regions.valid, iou(regions.boxes, box), 0)
    probability = np.asarray(jax.nn.softmax(found.logits[0]))[:, label]
    region = int((probability * (overlap > 0.5) + 1e-6 * overlap).argmax())
    offsets = None, None
    if model.deformable_pooling:
        layers = sown["intermediates"]["class_offset"][0], sown["intermediates"]["box_offset"][0]
        offsets = tuple(offset.reshape(-1, *offset.shape[-3:])[region] for offset in layers)
    return np.asarray(as_rois(regions))[region], offsets


def draw_scene(axes: Axes, image: np.ndarray, found: Detections) -> None:
    """Fills a panel with an image and the detections in it whose scores exceed `SHOWN_SCORE`."""
    axes.imshow(image, interpolation="nearest")
    axes.set_axis_off()
    for box, score, label in zip(*map(np.asarray, found), strict=True):
        if score > SHOWN_SCORE:  # the centre of the first pixel is at 0 in imshow
            draw_box(axes, box - 0.5, PALETTE(int(label)), f"{scenes.CLASSES[label]} {score:.2f}")


def zoom(axes: Axes, box: np.ndarray, image_size: int) -> None:
    """Shows a square around a box, shifted so that it is inside the image."""
    side = min(WINDOW * (box[2:] - box[:2]).max(), image_size)
    left, top = np.clip((box[:2] + box[2:] - side) / 2, 0, image_size - side) - 0.5
    axes.set(xlim=(left, left + side), ylim=(top + side, top))


def clearest_object(batch: scenes.Scenes, size: int) -> tuple[int, int]:
    """The object (image, index) of a size class with the highest contrast, in the inner part of the image."""
    centres = (batch.boxes[..., :2] + batch.boxes[..., 2:]) / 2
    margin = np.minimum(centres, batch.images.shape[1] - centres).min(-1)
    is_inner = margin > batch.images.shape[1] / 6
    candidates = np.argwhere((batch.labels >= 0) & (evaluate.size_class(batch.boxes) == size) & is_inner)

    def contrast(candidate):
        image, which = candidate
        x0, y0, x1, y1 = batch.boxes[image, which].astype(int)
        return batch.images[image, y0:y1, x0:x1].std()

    image, which = max(candidates, key=contrast)
    return int(image), int(which)
