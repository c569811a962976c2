"""A picture of where the deformable layers of a detector look."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from examples.digits import scenes
from examples.digits.backbone import STRIDE
from examples.digits.pictures import OUTLINE, clearest_object, draw_box, show, zoom

from .sampling import KERNEL, centre_cells, sampled_points


def draw_sampling(path: Path, batch: scenes.Scenes, layers: list[dict[str, np.ndarray]]) -> None:
    """Where the last layer, and the last two stacked, look from the centre of a small and of a large object."""
    figure = Figure(figsize=(10.4, 10.4), layout="constrained")
    axes = figure.subplots(2, 2)
    for row, (name, size) in enumerate({"small": 0, "large": 2}.items()):
        image, which = clearest_object(batch, size)
        box = batch.boxes[image, which]
        cell = centre_cells(box, batch.images.shape[1])
        for panel, depth, title in zip(axes[row], (1, 2), ("last layer", "last two layers"), strict=True):
            show(panel, batch.images[image])
            zoom(panel, box, batch.images.shape[1])
            draw_box(panel, box, int(batch.labels[image, which]))
            dots = _draw_points(panel, cell, _undeformed(cell, depth), *sampled_points(layers[-depth:], image, cell))
            panel.set_title(f"{name} object, {title}", fontsize=14)
    legend = {"ncols": 3, "fontsize": 12, "facecolor": "dimgray", "labelcolor": "white"}
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", **legend)
    bar = figure.colorbar(dots, ax=axes, location="bottom", shrink=0.6, aspect=40, extend="max")
    bar.set_label("modulation of the sample (1 = as in a plain convolution)", fontsize=12)
    figure.savefig(path, dpi=100)


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
