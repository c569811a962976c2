"""The detector: an anchor-free head on the backbone."""

from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.library.convolution import Conv

from .backbone import STRIDE, Backbone, locations, norm
from .evaluate import Detections, strongest

MAX_LOG_SIZE = 4.0
CLASS_PRIOR = 0.01


class Predictions(NamedTuple):
    """The outputs of the head at each location, row by row.

    logits: float32 [batch, locations, classes]; boxes: float32 [batch, locations, 4] as (x0, y0, x1, y1) in pixels.
    """

    logits: jax.Array
    boxes: jax.Array


class Detector(nn.Module):
    """uint8 images [batch, height, width, 3], sides divisible by 8, to `Predictions`.

    widths, blocks: as in `Backbone`.
    """

    classes: int
    widths: tuple[int, int, int, int] = Backbone.widths
    blocks: tuple[int, int, int] = Backbone.blocks

    @nn.compact
    def __call__(self, images: jax.Array) -> Predictions:
        x = Backbone(self.widths, self.blocks, name="backbone")(images)
        batch, rows, columns, _ = x.shape
        logits = self._branch(
            "class", x, self.classes, nn.initializers.constant(jnp.log(CLASS_PRIOR / (1 - CLASS_PRIOR)))
        )
        geometry = self._branch("box", x, 4, nn.initializers.zeros).reshape(batch, -1, 4)
        centres = locations(rows * STRIDE, columns * STRIDE) + STRIDE * geometry[..., :2]
        half_sizes = STRIDE * jnp.exp(jnp.minimum(geometry[..., 2:], MAX_LOG_SIZE))
        boxes = jnp.concatenate([centres - half_sizes, centres + half_sizes], -1)
        return Predictions(logits.reshape(batch, -1, self.classes), boxes)

    def _branch(self, name, x, channels, bias_init):
        x = nn.relu(norm(f"{name}_norm")(Conv(self.widths[-1], (3, 3), use_bias=False, name=f"{name}_conv")(x)))
        return Conv(channels, (1, 1), bias_init=bias_init, name=f"{name}_out")(x)


@partial(jax.jit, static_argnums=0)
def detect(model: Detector, params: dict, images: jax.Array) -> Detections:
    """The objects that a trained model detects in images [batch, height, width, 3]."""
    logits, boxes = model.apply({"params": params}, images)
    return jax.vmap(strongest)(jax.nn.sigmoid(logits), boxes)
