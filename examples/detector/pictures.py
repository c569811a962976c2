"""A picture of the sampling locations of a detector's deformable layers."""

from pathlib import Path

from matplotlib.figure import Figure

from examples.digits_library import scenes
from examples.digits_library.backbone import STRIDE
from examples.digits_library.pictures import clearest_object, draw_box, zoom
from jax_dcn import viz


def draw_sampling(path: Path, batch: scenes.Scenes, layers: list[viz.Layer]) -> None:
    """Draws what the last layer, and the last two, sample for the centres of a small and of a large object."""
    figure = Figure(figsize=(10.4, 10.4), layout="constrained")
    axes = figure.subplots(2, 2)
    for row, (name, size) in enumerate({"small": 0, "large": 2}.items()):
        image, which = clearest_object(batch, size)
        box = batch.boxes[image, which]
        column, line = (int((box[i] + box[i + 2]) / 2 // STRIDE) for i in range(2))
        for panel, depth, title in zip(axes[row], (1, 2), ("last layer", "last two layers"), strict=True):
            stack = [layer[image] for layer in layers[-depth:]]
            viz.plot_sampling(stack, (line, column), image=batch.images[image], ax=panel)
            panel.collections[0].set_clim(0, 1)
            panel.set_axis_off()
            zoom(panel, box, batch.images.shape[1])
            draw_box(panel, box, int(batch.labels[image, which]))
            panel.set_title(f"{name} object, {title}", fontsize=14)
    legend = {"ncols": 3, "fontsize": 12, "facecolor": "dimgray", "labelcolor": "white"}
    shown = (entries[:3] for entries in axes[0, 0].get_legend_handles_labels())
    figure.legend(*shown, loc="outside upper center", **legend)
    bar = figure.colorbar(axes[0, 0].collections[0], ax=axes, location="bottom", shrink=0.6, aspect=40, extend="max")
    bar.set_label("modulation of the sample (1 = as in a plain convolution)", fontsize=12)
    figure.savefig(path, dpi=100)
