"""Pictures of scenes and of the detections in them."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from examples.library.boxes import suppress

from . import scenes
from .evaluate import NMS_THRESHOLD, Detections, size_class

SCORE_THRESHOLD = 0.3
WINDOW = 88
PALETTE = matplotlib.colormaps["tab10"]
OUTLINE = [withStroke(linewidth=2.5, foreground="black")]


def draw_scene(axes: Axes, image: np.ndarray, found: Detections, index: int) -> None:
    """Fill a panel with an image, and with those detections of image `index` whose scores exceed `SCORE_THRESHOLD`."""
    axes.imshow(image, interpolation="nearest")
    axes.set_axis_off()
    for i in np.flatnonzero(found.scores[index] > SCORE_THRESHOLD):
        draw_box(axes, found.boxes[index, i], int(found.classes[index, i]), found.scores[index, i])


def zoom(axes: Axes, box: np.ndarray, image_size: int) -> None:
    """Show a square of `WINDOW` pixels around the box, shifted so that it is inside the image."""
    left, top = np.clip((box[:2] + box[2:] - WINDOW) / 2, 0, image_size - WINDOW) - 0.5
    axes.set(xlim=(left, left + WINDOW), ylim=(top + WINDOW, top))


def draw_box(axes: Axes, box: np.ndarray, label: int, score: float | None = None) -> None:
    """Draw a box and the name of its class, with its score if it has one."""
    x0, y0, x1, y1 = np.subtract(box, 0.5)  # the centre of the first pixel is at 0 in imshow
    colour = PALETTE(label)
    axes.add_patch(
        Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=colour, linewidth=1.8, path_effects=OUTLINE)
    )
    text = scenes.CLASSES[label] if score is None else f"{scenes.CLASSES[label]} {score:.2f}"
    inside = y0 < 10
    anchor = {"va": "top" if inside else "bottom", "ha": "left" if x0 < 100 else "right"}
    x, y = (x0 if x0 < 100 else x1) + 1, y0 + (1 if inside else -1)
    axes.text(x, y, text, color="white", fontsize=9, weight="bold", path_effects=OUTLINE, **anchor)


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
