"""From images to the input of the network, and from its masks to masks of images; both inside `jit`."""

import jax
import jax.numpy as jnp

from examples.resnet.images import DEVIATION, MEAN

SCALE = (1333, 800)
DIVISOR = 32


def resized_size(height: int, width: int, scale: tuple[int, int] = SCALE) -> tuple[int, int]:
    """The largest height and width with the same ratio, whose longer and shorter side are at most the numbers of scale.

    >>> resized_size(480, 640), resized_size(1000, 400)
    ((800, 1067), (1333, 533))
    """
    longer, shorter = max(scale), min(scale)
    factor = min(longer / max(height, width), shorter / min(height, width))
    return int(height * factor + 0.5), int(width * factor + 0.5)


def resize(images: jax.Array, height: int, width: int) -> jax.Array:
    """Bilinear interpolation between pixels, whole numbers as in mmdet: float32 [batch, height, width, 3]."""
    shape = (len(images), height, width, images.shape[-1])
    return jnp.round(jax.image.resize(images.astype(jnp.float32), shape, "linear", antialias=False))


def normalise(images: jax.Array) -> jax.Array:
    """RGB images [batch, height, width, 3] of numbers from 0 to 255, normalised and padded with zeros.

    The padding is below and on the right, and makes both sides divisible by `DIVISOR`.
    """
    pixels = (images.astype(jnp.float32) - jnp.array(MEAN)) / jnp.array(DEVIATION)
    return jnp.pad(pixels, [(0, 0), *((0, -extent % DIVISOR) for extent in images.shape[1:3]), (0, 0)])


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
