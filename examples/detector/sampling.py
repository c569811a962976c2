"""Where the deformable layers of a trained detector sample: effective dilation and sampling locations.

Positions are (y, x) in cells of the last feature map: the centre of cell (i, j) is (i, j).
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from examples.digits import scenes
from examples.digits.backbone import STRIDE
from examples.digits.evaluate import SIZE_LIMITS, size_class

from .model import Detector

KERNEL = np.stack(np.meshgrid([-1, 0, 1], [-1, 0, 1], indexing="ij"), -1)


def effective_dilation(offset: jax.Array) -> jax.Array:
    """Mean distance between adjacent sampling locations of a 3x3 filter (arXiv 1703.06211, section 4.2).

    offset: [..., 18], pairs (dy, dx) tap by tap; returns [...] in cells, 1 for a filter that is not deformed.

    >>> effective_dilation(jnp.zeros(18)).item()
    1.0
    """
    points = KERNEL + offset.reshape(*offset.shape[:-1], 3, 3, 2)
    steps = [jnp.linalg.norm(jnp.diff(points, axis=axis), axis=-1) for axis in (-3, -2)]
    return jnp.concatenate([step.reshape(*offset.shape[:-1], 6) for step in steps], -1).mean(-1)


@partial(jax.jit, static_argnums=0)
def deformable_layers(model: Detector, params: dict, images: jax.Array) -> list[dict[str, jax.Array]]:
    """`offset` [batch, height, width, 18] and `mask` [..., 9] of every deformable layer, first layer first."""
    _, sown = model.apply({"params": params}, images, mutable=["intermediates"])
    blocks = sown.get("intermediates", {}).get("backbone", {})
    return [
        {kind: values for kind, (values,) in blocks[block][conv].items()}
        for block in sorted(blocks)
        for conv in sorted(blocks[block])
    ]


def centre_cells(boxes: np.ndarray, image_size: int) -> np.ndarray:
    """Cells (row, column) of the centres of boxes [..., 4]."""
    centres = (boxes[..., :2] + boxes[..., 2:])[..., ::-1] / 2
    return np.clip(centres // STRIDE, 0, image_size // STRIDE - 1).astype(int)


def mean_dilations(model: Detector, params: dict, batches: list[scenes.Scenes]) -> dict[str, float]:
    """Mean effective dilation of the last stage's layers at the centres of objects, by the objects' size."""
    if not model.deformable:
        return {f"dilation {name}": 1.0 for name in SIZE_LIMITS}
    sizes, dilations = [], []
    for batch in batches:
        image, which = np.nonzero(batch.labels >= 0)
        boxes = batch.boxes[image, which]
        rows, columns = centre_cells(boxes, batch.images.shape[1]).T
        sizes.append(size_class(boxes))
        offsets = [layer["offset"][image, rows, columns] for layer in deformable_layers(model, params, batch.images)]
        dilations.append([np.asarray(effective_dilation(offset)) for offset in offsets])
    sizes, dilations = np.concatenate(sizes), np.concatenate(dilations, axis=1)
    return {f"dilation {name}": float(dilations[:, sizes == i].mean()) for i, name in enumerate(SIZE_LIMITS)}


def sampled_points(layers: list[dict[str, np.ndarray]], image: int, cell: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the given layers, one on top of the other, look from one cell of one image.

    Returns points [9 ** len(layers), 2] as (y, x) and their weights, the product of the masks on the way. A layer below
    starts from the cell nearest to the point that the layer above samples.
    """
    points, weights = np.array([cell], float), np.ones(1)
    for layer in reversed(layers):
        offset, mask = (np.asarray(layer[kind][image]) for kind in ("offset", "mask"))
        rows, columns = np.clip(points.round().astype(int), 0, np.array(offset.shape[:2]) - 1).T
        reached = points[:, None] + KERNEL.reshape(9, 2) + offset[rows, columns].reshape(-1, 9, 2)
        points, weights = reached.reshape(-1, 2), (weights[:, None] * mask[rows, columns]).ravel()
    return points, weights
