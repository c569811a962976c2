"""Windows on an image, and linear sampling of it at positions in `jax.numpy`, by the rules of lib/bilinear.h."""

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike


def output_size(
    image_size: Sequence[int],
    kernel_size: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    kernel_dilation: Sequence[int],
) -> tuple[int, ...]:
    """How many positions the window of a convolution takes along each axis of an image."""
    axes = zip(image_size, kernel_size, strides, padding, kernel_dilation, strict=True)
    return tuple(max((n + sum(pads) - (k - 1) * d - 1) // s + 1, 0) for n, k, s, pads, d in axes)


def is_inside(position: Any, size: int, circular: bool) -> Any:
    """Whether a sample at this position along an axis reads the image."""
    return (abs(position) < np.inf) & (size > 0) if circular else (position > -1) & (position < size)


def interpolate(
    pixels: jax.Array, positions: Sequence[jax.Array], image_size: Sequence[Any], circular: bool = False, first: Any = 0
) -> jax.Array:
    """The samples [..., groups, channels] of an image at positions [..., groups], one array for each axis.

    pixels [the product of image_size, groups, channels]: the image, the last axis innermost, in the dtype of the
    positions. Each group of channels is sampled at positions of its own. If `pixels` holds several images, the arrays
    `image_size`, and `first`, the index of its first pixel, say which one each position is in.
    """
    # If one coordinate is NaN or outside, all are, wherever the others lie.
    nan = reduce(operator.or_, map(jnp.isnan, positions))
    axes = list(zip(positions, image_size, strict=True))
    inside = reduce(operator.and_, (is_inside(position, size, circular) for position, size in axes))

    def locate(position: jax.Array, size: Any) -> _Axis:
        return _locate(jnp.where(nan, jnp.nan, 0) + jnp.where(inside | nan, position, -jnp.inf), size, circular)

    located = [locate(position, size) for position, size in axes]
    sampled = jnp.zeros((*nan.shape, pixels.shape[-1]), pixels.dtype)
    for sides in np.ndindex(*[2] * len(axes)):
        index: Any = 0
        is_read, weight = inside, jnp.ones((), pixels.dtype)
        for axis, size, side in zip(located, image_size, sides, strict=True):
            pixel = axis.pixel[side]
            index, is_read, weight = index * size + pixel, is_read & (pixel >= 0), weight * axis.weight(side)
        corner = read_pixels(pixels, jnp.where(is_read, first + index, pixels.shape[0]))
        sampled += weight[..., None] * jnp.where(nan[..., None], jnp.nan, corner)
    return sampled


def read_pixels(pixels: jax.Array, index: jax.Array) -> jax.Array:
    """The pixels [..., groups, channels] at `index` [..., groups]; zeros where the image has no such pixel."""
    # A gather needs at least one element to gather from, even if no index selects it.
    pixels = jnp.pad(pixels, [(0, int(pixels.shape[0] == 0)), (0, 0), (0, 0)])
    return pixels.at[index, np.arange(index.shape[-1])].get(mode="fill", fill_value=0)


def rounded_product(a: ArrayLike, b: ArrayLike) -> jax.Array:
    """A product that is rounded before it is added to anything.

    The last bit of a position decides on which side of a pixel it lies, where derivatives jump. XLA would fuse the
    product with the sum that uses it, and so round differently from the kernels. A `where` whose condition is not known
    at compile time prevents this. Its other branch is also infinite or NaN where the product is.
    """
    product = jnp.multiply(a, b)
    return jnp.where(jnp.isfinite(product), product, product + product)


class _Axis(NamedTuple):
    """The two pixels next to a coordinate, -1 where out of bounds, and its fraction of the way from first to second."""

    pixel: tuple[jax.Array, jax.Array]
    fraction: jax.Array
    is_inside: jax.Array

    def weight(self, i: int) -> jax.Array:
        return self.fraction if i else 1 - self.fraction


def _locate(position: jax.Array, size: int, circular: bool) -> _Axis:
    nan = jnp.isnan(position)
    inside = is_inside(position, size, circular)
    # Outside, nothing depends on the position. NaN stays, because its derivatives are NaN too.
    position = jnp.where(inside | nan, position, 0)
    low = jnp.floor(position)
    fraction = position - low
    low = jnp.where(inside, low, -1)
    if circular:
        low = lax.rem(low, jnp.full_like(low, max(size, 1)))
        low = jnp.where(low < 0, low + size, low)
    low = low.astype(jnp.int32)
    high = jnp.where(low + 1 < size, low + 1, 0 if circular else -1)
    return _Axis((low, high), fraction, inside)
