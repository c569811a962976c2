"""The sampling locations of a trained detector's deformable layers: their dilation, and a picture of them."""

from functools import partial
from pathlib import Path

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples.digits_library import scenes
from examples.digits_library.backbone import STRIDE
from examples.digits_library.evaluate import SIZE_LIMITS
from examples.digits_library.pictures import clearest_object, draw_box, zoom
from jax_dcn import as_deform_conv, viz

from .model import Detector


def deformable_layers(model: Detector, params: dict, images: np.ndarray) -> dict[str, viz.Layer]:
    """The `viz.Layer` of each deformable layer for images [batch, height, width, 3], first layer first."""
    blocks = _sown(model, params, images).get("backbone", {})
    layers = {f"{block} {conv}": blocks[block][conv] for block in sorted(blocks) for conv in sorted(blocks[block])}
    size = tuple(length // STRIDE for length in images.shape[1:3])
    found = {}
    for name, sown in layers.items():
        sampled = *sown["offset"], *sown["mask"]
        if model.operator in ("dcnv3", "dcnv4"):
            sampled = as_deform_conv(*sampled, kernel_size=3)
        found[name] = viz.Layer(*sampled, image_size=size, kernel_size=3)
    return found


@partial(jax.jit, static_argnums=0)
def _sown(model, params, images):
    return model.apply({"params": params}, images, mutable=["intermediates"])[1].get("intermediates", {})


def mean_dilations(model: Detector, params: dict, batches: list[scenes.Scenes]) -> dict[str, float]:
    """Mean effective dilation of the layers of the last stage at the centres of objects, by object size."""
    if model.operator == "plain":
        return {f"dilation {name}": 1.0 for name in SIZE_LIMITS}
    dilations = {name: [] for name in SIZE_LIMITS}
    for batch in batches:
        image, which = np.nonzero(batch.labels >= 0)
        table = viz.dilation_table(
            deformable_layers(model, params, batch.images),
            batch.boxes[image, which],
            image,
            image_size=batch.images.shape[1:3],
            sizes={name: low for name, (low, _) in SIZE_LIMITS.items()},
        )
        for name, found in dilations.items():
            found.extend(of_layer[name] for of_layer in table.values())
    return {f"dilation {name}": float(np.concatenate(found).mean()) for name, found in dilations.items()}


def draw_sampling(folder: Path, model: Detector, params: dict, batch: scenes.Scenes) -> None:
    """Draws what the last layer, and the last two, sample for the centres of a small and of a large object."""
    layers = deformable_layers(model, params, batch.images)
    figure = Figure(figsize=(10.4, 10.4), layout="constrained")
    axes = figure.subplots(2, 2)
    for row, (name, size) in enumerate({"small": 0, "large": 2}.items()):
        which = clearest_object(batch, size)
        for panel, depth, title in zip(axes[row], (1, 2), ("last layer", "last two layers"), strict=True):
            draw_samples(panel, layers, depth, batch, which)
            panel.set_title(f"{name} object, {title}", fontsize=14)
    add_legend(figure, axes)
    figure.savefig(folder / "sampling.png", dpi=100)


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
    draw_box(panel, box, int(batch.labels[which]))


def add_legend(figure: Figure, axes: np.ndarray) -> None:
    """Explains the marks and colours of the panels `axes`, which `draw_samples` has drawn."""
    legend = {"ncols": 3, "fontsize": 12, "facecolor": "dimgray", "labelcolor": "white"}
    first = axes.flat[0]
    figure.legend(*(entries[:3] for entries in first.get_legend_handles_labels()), loc="outside upper center", **legend)
    bar = figure.colorbar(first.collections[0], ax=axes, location="bottom", shrink=0.6, aspect=40, extend="max")
    bar.set_label("modulation of the sample (1 = as in a plain convolution)", fontsize=12)
