"""The sampling locations of a trained detector's deformable layers."""

from functools import partial

import jax
import numpy as np

from examples.digits_library import scenes
from examples.digits_library.backbone import STRIDE
from examples.digits_library.evaluate import SIZE_LIMITS
from jax_dcn import viz

from .model import Detector


def deformable_layers(model: Detector, params: dict, images: np.ndarray) -> dict[str, viz.Layer]:
    """The `viz.Layer` of each deformable layer for images [batch, height, width, 3], first layer first."""
    blocks = _sown(model, params, images).get("backbone", {})
    layers = {f"{block} {conv}": blocks[block][conv] for block in sorted(blocks) for conv in sorted(blocks[block])}
    size = tuple(length // STRIDE for length in images.shape[1:3])
    convert = _as_convolution if model.operator in ("dcnv3", "dcnv4") else lambda *arrays: arrays
    return {
        name: viz.Layer(*convert(*sown["offset"], *sown["mask"]), image_size=size, kernel_size=3)
        for name, sown in layers.items()
    }


def _as_convolution(offset, mask):
    """Offsets and masks of DCNv3 and DCNv4 as a deformable convolution has them: (dy, dx), and taps row by row."""
    taps = mask.reshape(*mask.shape[:-1], -1, 3, 3)
    offsets = offset.reshape(*taps.shape, 2)[..., ::-1]
    return tuple(array.swapaxes(mask.ndim, mask.ndim + 1).reshape(*mask.shape[:-1], -1) for array in (offsets, taps))


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
