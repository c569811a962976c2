"""The operator in `jax.numpy`: its definition, the source of its higher derivatives, and its form on any platform."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_dcn._operators.aggregation.arguments import Operands
from jax_dcn._operators.aggregation.geometry import (
    DCNv3Window,
    Spec,
    TapLevels,
    bilinear_positions,
    discrete_pixels,
    tap_levels,
    window_positions,
)
from jax_dcn._operators.bilinear import interpolate, read_pixels


def reference(operands: Operands[jax.Array], *, spec: Spec, origin: tuple[ArrayLike, ArrayLike]) -> jax.Array:
    """The result [..., queries, M, D] of the queries from `origin` on, as many as `locations` has."""
    aggregate: Any = partial(_aggregate, spec=spec, origin=origin)
    for _ in operands.value.shape[: -spec.image_dims - 2]:
        aggregate = jax.vmap(aggregate)
    return aggregate(*operands)


def _aggregate(
    value: jax.Array, locations: jax.Array, weights: jax.Array, *, spec: Spec, origin: tuple[ArrayLike, ArrayLike]
) -> jax.Array:
    *image_size, heads, channels = value.shape
    pixels = value.astype(locations.dtype).reshape(math.prod(image_size), heads, channels)
    levels = tap_levels(spec, value)
    if isinstance(spec, DCNv3Window):
        sampled = _interpolate(pixels, *window_positions(locations, spec, origin), levels)
    elif spec.discrete:
        sampled = _read(pixels, locations, levels)
    else:
        sampled = _interpolate(pixels, *bilinear_positions(locations, levels), levels)
    return (jnp.swapaxes(weights, -1, -2)[..., None] * sampled).sum(-3).astype(value.dtype)


def _interpolate(pixels: jax.Array, y: jax.Array, x: jax.Array, levels: TapLevels) -> jax.Array:
    """The samples [..., T, M, D] of pixels [S, M, D] at the positions y and x, each [..., M, T]."""
    height, width, first = map(_of_taps, levels)
    return interpolate(pixels, (jnp.swapaxes(y, -1, -2), jnp.swapaxes(x, -1, -2)), (height, width), first=first)


def _read(pixels: jax.Array, locations: jax.Array, levels: TapLevels) -> jax.Array:
    """The pixels [..., T, M, D] that locations [..., M, T, 2] read. A NaN location gives NaN."""
    row, column = discrete_pixels(locations, levels)
    index = levels.first_pixel + row * levels.width + column
    nan = jnp.isnan(locations).any(-1)
    return jnp.where(jnp.swapaxes(nan, -1, -2)[..., None], jnp.nan, read_pixels(pixels, jnp.swapaxes(index, -1, -2)))


def _of_taps(numbers: Any) -> Any:
    """Numbers [T] of the taps, in a shape that broadcasts with [..., T, M]."""
    return numbers[:, None] if isinstance(numbers, np.ndarray) else numbers
