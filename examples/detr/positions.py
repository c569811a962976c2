"""Positions of pixels and boxes, as coordinates and as sines.

A pyramid of `shapes` ((height, width), ...) has its pixels one level after another, rows before columns. Coordinates
are (x, y), and sizes of images are 1.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

Shapes = Sequence[tuple[int, int]]


class Pyramid(NamedTuple):
    """A feature pyramid, its levels one after another.

    features: [batch, pixels, channels]; shapes: (height, width) of each level; mask: [batch, pixels], whether a pixel
    is valid, None if all are; ratios: [batch or 1, levels or 1, 2], the valid share of the width and of the height.
    """

    features: jax.Array
    shapes: Shapes
    mask: jax.Array | None
    ratios: jax.Array

    @classmethod
    def of(cls, levels: Sequence[jax.Array]) -> Self:
        """The pyramid of maps [batch, height, width, channels] without padding."""
        shapes = tuple(level.shape[1:3] for level in levels)
        features = jnp.concatenate([jax.lax.collapse(level, 1, 3) for level in levels], 1)
        return cls(
            features, shapes, None, jnp.ones((1, len(levels), 2), jnp.promote_types(features.dtype, jnp.float32))
        )


TEMPERATURE = 10000


def resize_mask(mask: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """A mask [batch, height, width] at the size of a feature map, by its nearest pixels."""
    rows, columns = (np.arange(small) * large // small for small, large in zip(shape, mask.shape[1:], strict=True))
    return mask[:, rows][:, :, columns]


def valid_ratios(masks: Sequence[jax.Array], dtype: jnp.dtype) -> jax.Array:
    """The share of each level that is valid: [batch, levels, 2], by its first row and its first column."""
    return jnp.stack([jnp.stack([mask[:, 0].mean(-1, dtype), mask[:, :, 0].mean(-1, dtype)], -1) for mask in masks], 1)


def pixel_centres(shapes: Shapes, ratios: jax.Array) -> jax.Array:
    """The centres of all pixels [batch, pixels, 2], as fractions of the valid part of their level."""
    grids = []
    for level, (height, width) in enumerate(shapes):
        y, x = np.mgrid[:height, :width].astype(ratios.dtype) + 0.5
        valid = ratios[:, level, None] * np.array([width, height], ratios.dtype)
        grids.append(np.stack([x, y], -1).reshape(-1, 2) / valid)
    return jnp.concatenate(grids, 1)


def sines_of_pixels(mask: jax.Array, features: int, dtype: jnp.dtype) -> jax.Array:
    """An embedding of the pixels of an image of which a part is valid: [batch, height, width, features].

    The first half of the features is the row and the second half is the column, both in relation to the valid part.
    """
    halves = []
    for axis in (1, 2):
        count = jnp.cumsum(mask, axis, dtype)
        last = jax.lax.slice_in_dim(count, mask.shape[axis] - 1, None, axis=axis)
        halves.append(sines(2 * math.pi * (count - 0.5) / (last + 1e-6), features // 2))
    return jnp.concatenate(halves, -1)


def of_pixels(levels: jax.Array, shapes: Shapes) -> jax.Array:
    """What each pixel of a pyramid has from its level: [pixels, features] from [levels, features], exactly."""
    pixels = [height * width for height, width in shapes]
    is_level = np.repeat(np.eye(len(shapes)), pixels, 0).astype(levels.dtype)
    return jnp.matmul(is_level, levels, precision=jax.lax.Precision.HIGHEST)


def sines_of_boxes(boxes: jax.Array, features: int) -> jax.Array:
    """An embedding of boxes [..., 4]: [..., 4 * features]."""
    return sines(2 * math.pi * boxes, features).reshape(*boxes.shape[:-1], -1)


def sines(angles: jax.Array, features: int) -> jax.Array:
    """Sines (even features) and cosines (odd features) of the angles, at falling frequencies: [..., features]."""
    index = np.arange(features)
    wavelengths = TEMPERATURE ** (2 * (index // 2) / features)
    phases = angles[..., None] / wavelengths.astype(angles.dtype)
    return jnp.where(index % 2, jnp.cos(phases), jnp.sin(phases))


def sines_of_grid(height: int, width: int, features: int, temperature: float) -> np.ndarray:
    """RT-DETR's embedding of pixels, by their integer positions: float64 [height * width, features]."""
    frequencies = temperature ** -(np.arange(features // 4) / (features // 4))
    y, x = np.mgrid[:height, :width].reshape(2, -1, 1) * frequencies
    return np.concatenate([function(phases) for phases, function in itertools.product((y, x), (np.sin, np.cos))], -1)
