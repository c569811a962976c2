"""The sampling locations of a trained detector's deformable layers."""

from functools import partial

import jax
import numpy as np

from examples.digits_library import scenes
from examples.digits_library.backbone import STRIDE
from examples.digits_library.evaluate import SIZE_LIMITS
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
