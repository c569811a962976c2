"""Pictures of scenes and of the detections in them."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from examples.library.boxes import suppress
from examples.library.objects import draw_box

from . import scenes
from .evaluate import NMS_THRESHOLD, Detections, size_class

SCORE_THRESHOLD = 0.3
WINDOW = 88
PALETTE = matplotlib.colormaps["tab10"]


def draw_scene(axes: Axes, image: np.ndarray, found: Detections, index: int) -> None:
    """Fill a panel with an image, and with those detections of image `index` whose scores exceed `SCORE_THRESHOLD`."""
    axes.imshow(image, interpolation="nearest")
    axes.set_axis_off()
    for i in np.flatnonzero(found.scores[index] > SCORE_THRESHOLD):
        draw_digit(axes, found.boxes[index, i], int(found.classes[index, i]), found.scores[index, i])


def zoom(axes: Axes, box: np.ndarray, image_size: int) -> None:
    """Show a square of `WINDOW` pixels around the box, shifted so that it is inside the image."""
    left, top = np.clip((box[:2] + box[2:] - WINDOW) / 2, 0, image_size - WINDOW) - 0.5
    axes.set(xlim=(left, left + WINDOW), ylim=(top + WINDOW, top))


def draw_digit(axes: Axes, box: np.ndarray, label: int, score: float | None = None) -> None:
    """Draw a box and the name of its class, with its score if it has one."""
    text = scenes.CLASSES[label] + ("" if score is None else f" {score:.2f}")
    draw_box(axes, box - 0.5, PALETTE(label), text)  # the centre of the first pixel is at 0 in imshow


def clearest_object(batch: scenes.Scenes, size: int) -> tuple[int, int]:
    """The object (image, index) of a size class with the highest contrast, away from the border of the image."""
    centres = (batch.boxes[..., :2] + batch.boxes[..., 2:]) / 2
    margin = np.minimum(centres, batch.images.shape[1] - centres).min(-1)
    candidates = np.argwhere((batch.labels >= 0) & (size_class(batch.boxes) == size) & (margin > WINDOW / 4))

    def contrast(candidate):
        image, which = candidate
        x0, y0, x1, y1 = batch.boxes[image, which].astype(int)
        return batch.images[image, y0:y1, x0:x1].std()

    image, which = max(candidates, key=contrast)
    return int(image), int(which)


def strongest_class(found: Detections) -> Detections:
    """The detections without those that lie where another class has a higher score."""
    one_class = np.zeros_like(found.classes[0])
    scores = [suppress(*image, one_class, NMS_THRESHOLD) for image in zip(found.boxes, found.scores, strict=True)]
    return found._replace(scores=np.array(scores))
