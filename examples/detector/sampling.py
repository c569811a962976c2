"""The sampling locations of a trained detector's deformable layers, and a picture of them."""

from functools import partial

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jax_dcn import viz

from . import scenes
from .backbone import STRIDE
from .model import Detector
from .pictures import draw_digit, zoom


def deformable_layers(model: Detector, params: dict, images: np.ndarray) -> dict[str, viz.Layer]:
    """The `viz.Layer` of each deformable layer for images [batch, height, width, 3], first layer first."""
    blocks = _sown(model, params, images)["backbone"]
    size = tuple(length // STRIDE for length in images.shape[1:3])
    return {
        f"{name} {conv}": viz.Layer(*layer["offset"], *layer["mask"], image_size=size, kernel_size=3)
        for name, block in sorted(blocks.items())
        for conv, layer in sorted(block.items())
    }


@partial(jax.jit, static_argnums=0)
def _sown(model, params, images):
    return model.apply({"params": params}, images, mutable=["intermediates"])[1]["intermediates"]


def draw_samples(
    panel: Axes, layers: dict[str, viz.Layer], depth: int, batch: scenes.Scenes, which: tuple[int, int]
) -> None:
    """Draws what the last `depth` layers sample for the centre of the object `which`, an index into `batch.boxes`."""
    image, box = which[0], batch.boxes[which]
    column, line = (int((box[i] + box[i + 2]) / 2 // STRIDE) for i in range(2))
    stack = [layer[image] for layer in list(layers.values())[-depth:]]
    viz.plot_sampling(stack, (line, column), image=batch.images[image], ax=panel)
    panel.collections[0].set_clim(0, 1)
    panel.set_axis_off()
    zoom(panel, box, batch.images.shape[1])
    draw_digit(panel, box, int(batch.labels[which]))


def add_legend(figure: Figure, axes: np.ndarray) -> None:
    """Explains the marks and colours of the panels `axes`, which `draw_samples` has drawn."""
    legend = {"ncols": 3, "fontsize": 12, "facecolor": "dimgray", "labelcolor": "white"}
    first = axes.flat[0]
    figure.legend(*(entries[:3] for entries in first.get_legend_handles_labels()), loc="outside upper center", **legend)
    bar = figure.colorbar(first.collections[0], ax=axes, location="bottom", shrink=0.6, aspect=40, extend="max")
    bar.set_label("modulation of the sample (1 = as in a plain convolution)", fontsize=12)
