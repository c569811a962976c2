"""The average precision of a model, and pictures of what it finds and where it looks."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from examples.library import loading, precision
from examples.library.boxes import centre_to_corners
from examples.library.coco import Dataset
from examples.library.devices import shared
from examples.library.objects import PALETTE, draw_box

from .data import Loading, evaluation_batches
from .deformable_detr import DeformableDetr
from .images import Normalisation, Preprocessor
from .weights import Checkpoint

SHOWN_SCORE = 0.4
SHOWN_SAMPLES = 3  # objects of an image whose samples are drawn


@dataclass(frozen=True)
class Detector:
    """A model, and how its images are normalised."""

    model: nn.Module
    normalisation: Normalisation

    @property
    def most_objects(self) -> int:
        """How many objects of an image are kept, as in transformers and in the authors' evaluations."""
        return 100 if isinstance(self.model, DeformableDetr) else self.model.config.num_queries

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Detector":
        """The detector of a checkpoint."""
        return cls(checkpoint.model, checkpoint.processor.normalisation)

    def arguments(self, images: jax.Array, mask: jax.Array) -> tuple[jax.Array, ...]:
        """The arguments of the model for images of values from 0 to 255, and the mask of their valid pixels."""
        images = self.normalisation(images, mask)
        return (images, mask) if isinstance(self.model, DeformableDetr) else (images,)


@partial(jax.jit, static_argnames="detector")
def find(detector: Detector, variables: dict[str, Any], images: jax.Array, mask: jax.Array) -> tuple[jax.Array, ...]:
    """The best objects of each image, best first: scores and labels [batch, n], boxes [batch, n, 4], and the sampling
    locations [batch, n, heads, points, 2] of the last decoder layer.

    Boxes (x0, y0, x1, y1) and locations are fractions of the part of an image that is no padding, and of the image.
    """
    arguments = detector.arguments(images, mask)
    outputs, recorded = detector.model.apply(variables, *arguments, mutable=["intermediates"])
    layers = recorded["intermediates"]["decoder"]
    ((locations, _),) = layers[f"layers_{len(outputs.layers.boxes) - 1}"]["sampling"]
    scores = jax.nn.sigmoid(outputs.logits)
    classes = scores.shape[-1]
    flat = scores.reshape(len(scores), -1)
    best, index = jax.lax.top_k(flat, min(detector.most_objects, flat.shape[1]))
    query = index // classes
    boxes = jnp.take_along_axis(centre_to_corners(outputs.boxes), query[..., None], 1)
    chosen = jnp.take_along_axis(locations, query[..., None, None, None], 1)
    return best, index % classes, boxes, chosen


def evaluated(
    detector: Detector, variables: dict[str, Any], dataset: Dataset, processor: Preprocessor, settings: Loading
) -> precision.Evaluation:
    """COCO's AP, AP50 and AP75, and AP of each class, on all images of a data set, which the processes share."""

    def results(image, found):
        info, (scores, labels, boxes) = dataset.annotations.imgs[image], found
        boxes = boxes * np.array([info["width"], info["height"]] * 2)
        return [one for _, one in dataset.results(image, scores, labels, boxes)]

    return loading.evaluated(
        evaluation_batches(dataset, processor, settings),
        lambda batch: find(detector, variables, *batch)[:3],
        results,
        partial(precision.average_precision, dataset.annotations, of_classes=True),
    )


def draw(
    path: Path,
    detector: Detector,
    variables: dict[str, Any],
    dataset: Dataset,
    processor: Preprocessor,
    settings: Loading,
) -> None:
    """Writes a picture of a batch of images: above what was found, below where its best objects were looked for."""
    _, (images, masks) = next(iter(evaluation_batches(dataset, processor, settings)))
    found = jax.device_get(find(detector, variables, *shared((images, masks))))
    count = min(4, len(images))
    figure = Figure(figsize=(4 * count, 8.2), layout="constrained")
    for column, axes in enumerate(figure.subplots(2, count, squeeze=False).T):
        scores, labels, boxes, locations = (part[column] for part in found)
        filled = np.array([masks[column].any(0).sum(), masks[column].any(1).sum()])
        for row, ax in enumerate(axes):
            ax.imshow(images[column])
            ax.set_axis_off()
            for index in np.flatnonzero(scores > SHOWN_SCORE)[: SHOWN_SAMPLES if row else None]:
                colour = PALETTE((index if row else labels[index]) % PALETTE.N)
                text = "" if row else f"{dataset.names[labels[index]]} {scores[index]:.2f}"
                draw_box(ax, boxes[index] * np.tile(filled, 2) - 0.5, colour, text, size=8)
                if row:
                    places = locations[index].reshape(-1, 2) * images.shape[2:0:-1] - 0.5
                    ax.scatter(*places.T, s=7, color=colour, linewidths=0)
            ax.set(xlim=(-0.5, images.shape[2] - 0.5), ylim=(images.shape[1] - 0.5, -0.5))
    figure.suptitle(
        f"Objects with a score above {SHOWN_SCORE}, and where the last decoder layer samples for three of them"
    )
    figure.savefig(path, dpi=100)
