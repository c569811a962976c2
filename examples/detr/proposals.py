"""The first of two stages: each pixel of the encoder proposes a box."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from examples.library.layers import Dense

from .layers import LayerOptions
from .positions import Pyramid, Shapes, pixel_centres

Project = Callable[[jax.Array], jax.Array]

SIZE = 0.05  # of a proposal on the first level; each further level doubles it
MARGIN = 0.01


def anchors(shapes: Shapes, ratios: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A box [batch, pixels, 4] per pixel, and whether it is inside the image: [batch, pixels, 1].

    ratios: [batch, levels, 2], the valid share of the width and of the height of each level. Boxes are fractions of the
    valid part. Boxes of pixels beyond it are outside.
    """
    centres = pixel_centres(shapes, ratios)
    sizes = np.concatenate([np.full((h * w, 2), SIZE * 2.0**level) for level, (h, w) in enumerate(shapes)])
    boxes = jnp.concatenate([centres, jnp.broadcast_to(sizes.astype(centres.dtype), centres.shape)], -1)
    return boxes, jnp.all((boxes > MARGIN) & (boxes < 1 - MARGIN), -1, keepdims=True)


def candidates(memory: Pyramid) -> tuple[jax.Array, jax.Array]:
    """The features [batch, pixels, channels] of the encoded pyramid that make proposals, and the logits of their
    `anchors`, which have the precision of positions, at least float32. Those of boxes outside are infinite."""
    boxes, inside = anchors(memory.shapes, memory.ratios)
    boxes = jnp.where(inside, boxes, 0.5)
    return jnp.where(inside, memory.features, 0), jnp.where(inside, jnp.log(boxes / (1 - boxes)), jnp.inf)


def projection(like: jax.Array, epsilon: float = 1e-5, end: str = "") -> Project:
    """Of features like these to those of proposals, at least in float32; makes layers of the calling module, whose
    names end so."""
    dense = Dense(like.shape[-1], dtype=like.dtype, name=f"enc_output{end}")
    norm = LayerOptions(epsilon=epsilon).norm(f"enc_output_norm{end}")
    return lambda features: norm(dense(features))


def choose(
    count: int, project: Project, classify: nn.Module, features: jax.Array, boxes: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The features of the proposals with the best scores, at most `count`, their logits, and their boxes.

    features, boxes: of all pixels. What has gradients is computed of the chosen ones only.
    """
    scores = jax.lax.stop_gradient(classify(project(features)).max(-1))
    features, boxes = best(scores, count, features, boxes)
    features = project(features)
    return features, classify(features), boxes


def best(scores: jax.Array, count: int, *arrays: jax.Array) -> list[jax.Array]:
    """The items of arrays [batch, items, channels] with the highest scores [batch, items], at most `count`."""
    chosen = jax.lax.top_k(scores, min(count, scores.shape[1]))[1][..., None]
    return [jnp.take_along_axis(array, chosen, 1) for array in arrays]
