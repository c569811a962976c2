"""A picture of where the bins of deformable pooling look."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from examples.digits import scenes
from examples.digits.evaluate import SIZE_LIMITS
from examples.digits.pictures import OUTLINE, clearest_object, show, zoom

from .sampling import Moves, bin_points, region_of

BIN_COLOURS = matplotlib.colormaps["tab10"]


def draw_bins(path: Path, batch: scenes.Scenes, found: Moves) -> None:
    """The sampling points of every bin, for the class and for the box, of a small, a medium and a large object."""
    figure = Figure(figsize=(13.5, 9.6), layout="constrained")
    axes = figure.subplots(2, len(SIZE_LIMITS), squeeze=False)
    for size, name in enumerate(SIZE_LIMITS):
        image, which = clearest_object(batch, size)
        label, true_box = int(batch.labels[image, which]), batch.boxes[image, which]
        region = region_of(found, image, true_box, label)
        box = found.regions.boxes[image, region]
        shifts = found.of_class[image, region, :, :, label], found.of_box[image, region]
        titles = f"is it a {scenes.CLASSES[label]}?", "where are its sides?"
        for panel, title, shift in zip(axes[:, size], titles, shifts, strict=True):
            show(panel, batch.images[image])
            zoom(panel, true_box, batch.images.shape[1], window=1.8 * (true_box[2:] - true_box[:2]).max())
            _draw_region(panel, box, bin_points(box, np.zeros_like(shift)), bin_points(box, shift))
            panel.set_title(f"{name} object: {title}", fontsize=14)
    figure.suptitle("The bins of a region, and the points that each averages: moved as learnt", fontsize=16)
    figure.savefig(path, dpi=90)


def _draw_region(axes, box, unmoved, moved):
    bins = len(moved)
    side = (box[2:] - box[:2]) / bins
    outline = {"fill": False, "edgecolor": "white", "linewidth": 1.8, "path_effects": OUTLINE}
    axes.add_patch(Rectangle(box[:2], *(box[2:] - box[:2]), **outline))
    for row, column in np.ndindex(bins, bins):
        colour = BIN_COLOURS((row * bins + column) % BIN_COLOURS.N)
        start, end = unmoved[row, column].mean(0), moved[row, column].mean(0)
        axes.add_patch(Rectangle(unmoved[row, column, 0], *side, fill=False, edgecolor=colour, lw=1.2, ls=":"))
        axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.8})
        axes.scatter(*moved[row, column].T, color=colour, s=16, edgecolors="black", linewidths=0.5, zorder=3)
