"""From images to the input of the network, and from its masks to masks of images."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .config import Config

Array = TypeVar("Array", np.ndarray, jax.Array)
WEIGHT_BITS = 11  # of the fractions between pixels


def resized_size(height: int, width: int, scale: tuple[int, int]) -> tuple[int, int]:
    """The largest height and width with the same ratio, whose longer and shorter side are at most the numbers of scale.

    >>> resized_size(480, 640, (1333, 800)), resized_size(1000, 400, (1333, 800))
    ((800, 1067), (1333, 533))
    """
    longer, shorter = max(scale), min(scale)
    factor = min(longer / max(height, width), shorter / min(height, width))
    return max(int(height * factor + 0.5), 1), max(int(width * factor + 0.5), 1)


def padded_sides(scale: tuple[int, int], divisor: int) -> tuple[int, int]:
    """The sides, the shorter one first, of the smallest padded image that has room for every image of a scale.

    >>> padded_sides((1333, 800), 32)
    (800, 1344)
    """
    shorter, longer = sorted(side + -side % divisor for side in scale)
    return shorter, longer


def resize(images: Array, height: int, width: int) -> Array:
    """Images uint8 [batch, height, width, 3], interpolated bit by bit as by OpenCV's INTER_LINEAR, which mmdet uses.

    Pixels are sampled at their centres, without a filter where an image becomes smaller. Weights are integers, and
    products are rounded down before they are added. The result holds whole numbers in float32.
    """
    (left, right), (left_weight, right_weight) = _taps(images.shape[2], width)
    (top, bottom), (top_weight, bottom_weight) = _taps(images.shape[1], height)
    images = images.astype("int32")
    rows = images[:, :, left] * left_weight[:, None] + images[:, :, right] * right_weight[:, None]
    rows = rows >> 4
    above = rows[:, top] * top_weight[:, None, None] >> 16
    below = rows[:, bottom] * bottom_weight[:, None, None] >> 16
    return (above + below + 2 >> 2).astype("float32")


def _taps(length: int, new_length: int) -> tuple[np.ndarray, np.ndarray]:
    """The two pixels between which each new pixel is, [2, new_length], and their weights."""
    position = ((np.arange(new_length) + 0.5) / (new_length / length) - 0.5).astype(np.float32)
    first = np.floor(position)
    weight = position - first
    weights = np.rint(np.stack([1 - weight, weight]) * 2**WEIGHT_BITS).astype(np.int32)
    pixels = np.clip(np.stack([first, first + 1]), 0, length - 1).astype(np.int32)
    return pixels, weights


def normalise(images: jax.Array, config: Config) -> jax.Array:
    """RGB images [batch, height, width, 3] of numbers from 0 to 255, normalised as for a model and padded with zeros.

    The padding is below and on the right, and makes both sides divisible by the model's divisor.
    """
    pixels = images[..., ::-1] if config.bgr else images
    pixels = (pixels.astype(jnp.float32) - jnp.array(config.mean)) / jnp.array(config.deviation)
    return jnp.pad(pixels, [(0, 0), *((0, -extent % config.divisor) for extent in images.shape[1:3]), (0, 0)])


def paste(masks: jax.Array, boxes: jax.Array, height: int, width: int) -> jax.Array:
    """Masks [..., m, m] of boxes [..., 4], interpolated at the pixels of an image: [..., height, width].

    Bilinear interpolation is a product of two one-dimensional ones. Outside of its cells a mask is 0.
    """
    x0, y0, x1, y1 = jnp.moveaxis(boxes, -1, 0)
    rows = _weights(y0, y1, height, masks.shape[-2])
    columns = _weights(x0, x1, width, masks.shape[-1])
    return rows @ masks @ jnp.swapaxes(columns, -1, -2)


def _weights(low, high, pixels, cells):
    """The weights [..., pixels, cells] of the cells between low and high at the centres of pixels."""
    positions = (jnp.arange(pixels) + 0.5 - low[..., None]) / (high - low)[..., None] * cells - 0.5
    return jnp.maximum(1 - jnp.abs(positions[..., None] - jnp.arange(cells)), 0)
