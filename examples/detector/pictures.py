"""Pictures of what a detector finds and of where its deformable layers look."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from . import scenes
from .boxes import suppress
from .evaluate import NMS_THRESHOLD, Detections, size_class
from .model import STRIDE
from .sampling import KERNEL, centre_cells, sampled_points

SCORE_THRESHOLD = 0.3
WINDOW = 88
PALETTE = matplotlib.colormaps["tab10"]
OUTLINE = [withStroke(linewidth=2.5, foreground="black")]


def draw_detections(path: Path, batch: scenes.Scenes, found: dict[str, Detections], images: int = 4) -> None:
    """One row a scene: the ground truth and each variant's detections that score above `SCORE_THRESHOLD`.

    Of several classes detected at one place only the strongest is drawn.
    """
    figure = Figure(figsize=(3.4 * (1 + len(found)), 3.4 * images + 0.7), layout="constrained")
    columns = {"ground truth": Detections(batch.boxes, batch.labels >= 0, batch.labels)}
    columns |= {variant: _strongest_class(detections) for variant, detections in found.items()}
    axes = figure.subplots(images, len(columns), squeeze=False)
    for column, (title, (boxes, scores, classes)) in enumerate(columns.items()):
        axes[0, column].set_title(title, fontsize=15)
        for row in range(images):
            _show(axes[row, column], batch.images[row])
            for i in np.flatnonzero(scores[row] > SCORE_THRESHOLD):
                score = None if title == "ground truth" else scores[row, i]
                _draw_box(axes[row, column], boxes[row, i], int(classes[row, i]), score)
    figure.suptitle(f"Digits on photographs: detections with a score above {SCORE_THRESHOLD}", fontsize=16)
    figure.savefig(path, dpi=110)


def draw_sampling(path: Path, batch: scenes.Scenes, layers: list[dict[str, np.ndarray]]) -> None:
    """Where the last layer, and the last two stacked, look from the centre of a small and of a large object."""
    figure = Figure(figsize=(10.4, 10.4), layout="constrained")
    axes = figure.subplots(2, 2)
    for row, (name, size) in enumerate({"small": 0, "large": 2}.items()):
        image, which = _clearest_object(batch, size)
        box = batch.boxes[image, which]
        cell = centre_cells(box, batch.images.shape[1])
        for panel, depth, title in zip(axes[row], (1, 2), ("last layer", "last two layers"), strict=True):
            _show(panel, batch.images[image])
            _zoom(panel, box, batch.images.shape[1])
            _draw_box(panel, box, int(batch.labels[image, which]))
            dots = _draw_points(panel, cell, _undeformed(cell, depth), *sampled_points(layers[-depth:], image, cell))
            panel.set_title(f"{name} object, {title}", fontsize=14)
    legend = {"ncols": 3, "fontsize": 12, "facecolor": "dimgray", "labelcolor": "white"}
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", **legend)
    bar = figure.colorbar(dots, ax=axes, location="bottom", shrink=0.6, aspect=40, extend="max")
    bar.set_label("modulation of the sample (1 = as in a plain convolution)", fontsize=12)
    figure.savefig(path, dpi=100)


def _show(axes: Axes, image):
    height, width = image.shape[:2]
    axes.imshow(image, extent=(0, width, height, 0), interpolation="nearest")
    axes.set_axis_off()


def _zoom(axes, box, image_size):
    """Show a square of `WINDOW` pixels around the box, as far as the image reaches."""
    left, top = np.clip((box[:2] + box[2:] - WINDOW) / 2, 0, image_size - WINDOW)
    axes.set(xlim=(left, left + WINDOW), ylim=(top + WINDOW, top))


def _strongest_class(found):
    one_class = np.zeros_like(found.classes[0])
    scores = [suppress(*image, one_class, NMS_THRESHOLD) for image in zip(found.boxes, found.scores, strict=True)]
    return found._replace(scores=np.array(scores))


def _draw_box(axes, box, label, score=None):
    x0, y0, x1, y1 = box
    colour = PALETTE(label)
    axes.add_patch(
        Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=colour, linewidth=1.8, path_effects=OUTLINE)
    )
    text = scenes.CLASSES[label] if score is None else f"{scenes.CLASSES[label]} {score:.2f}"
    inside = y0 < 10
    anchor = {"va": "top" if inside else "bottom", "ha": "left" if x0 < 100 else "right"}
    x, y = (x0 if x0 < 100 else x1) + 1, y0 + (1 if inside else -1)
    axes.text(x, y, text, color="white", fontsize=9, weight="bold", path_effects=OUTLINE, **anchor)


def _draw_points(axes, cell, undeformed, points, weights):
    def pixels(cells):
        return (np.asarray(cells)[..., ::-1] + 0.5) * STRIDE

    axes.plot(
        *pixels(cell), "+", color="white", markersize=14, markeredgewidth=2.5, path_effects=OUTLINE, label="centre"
    )
    axes.plot(
        *pixels(undeformed).T, "s", color="none", markeredgecolor="white", markersize=6, label="plain convolution"
    )
    size = 46 if len(points) == 9 else 20
    style = {"cmap": "plasma", "vmin": 0, "vmax": 1, "edgecolors": "black", "linewidths": 0.7, "zorder": 3}
    return axes.scatter(*pixels(points).T, c=weights, s=size, label="deformable convolution", **style)


def _undeformed(cell, depth):
    points = np.array([cell])
    for _ in range(depth):
        points = np.unique((points[:, None] + KERNEL.reshape(9, 2)).reshape(-1, 2), axis=0)
    return points


def _clearest_object(batch, size):
    """The object (image, index) of a size class that stands out most, away from the image's border."""
    centres = (batch.boxes[..., :2] + batch.boxes[..., 2:]) / 2
    margin = np.minimum(centres, batch.images.shape[1] - centres).min(-1)
    candidates = np.argwhere((batch.labels >= 0) & (size_class(batch.boxes) == size) & (margin > WINDOW / 4))

    def contrast(candidate):
        image, which = candidate
        x0, y0, x1, y1 = batch.boxes[image, which].astype(int)
        return batch.images[image, y0:y1, x0:x1].std()

    return max(candidates, key=contrast)
