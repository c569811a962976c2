"""The operator in `jax.numpy`: its definition, the source of its higher derivatives, and its form on any platform."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn._operators.aggregation.geometry import (
    Level,
    Spec,
    Window,
    bilinear_positions,
    discrete_pixels,
    levels_of,
    window_positions,
)
from jax_dcn._operators.sampling import interpolate, read_pixels


def reference(
    value: jax.Array,
    locations: jax.Array,
    weights: jax.Array,
    *,
    spec: Spec,
    origin: tuple[ArrayLike, ArrayLike],
) -> jax.Array:
    """The result [..., queries, M, D] of the queries from `origin` on, as many as `locations` has."""
    aggregate: Any = partial(_aggregate, spec=spec, origin=origin)
    for _ in value.shape[: -spec.image_dims - 2]:
        aggregate = jax.vmap(aggregate)
    return aggregate(value, locations, weights)


def _aggregate(
    value: jax.Array, locations: jax.Array, weights: jax.Array, *, spec: Spec, origin: tuple[ArrayLike, ArrayLike]
) -> jax.Array:
    *image_size, heads, channels = value.shape
    pixels = value.astype(locations.dtype).reshape(math.prod(image_size), heads, channels)
    out = jnp.zeros((*locations.shape[:-2], channels), locations.dtype)
    first_pixel = first_tap = 0
    for level in levels_of(spec, value):
        end_pixel, end_tap = first_pixel + level.height * level.width, first_tap + level.points
        sampled = _sample(pixels[first_pixel:end_pixel], locations[..., first_tap:end_tap, :], level, spec, origin)
        out += (weights[..., first_tap:end_tap, None] * sampled).sum(-2)
        first_pixel, first_tap = end_pixel, end_tap
    return out.astype(value.dtype)


def _sample(
    pixels: jax.Array, locations: jax.Array, level: Level, spec: Spec, origin: tuple[ArrayLike, ArrayLike]
) -> jax.Array:
    """The samples [queries, M, T, D] of a level's pixels [height·width, M, D]."""

    def taps_first(array: jax.Array) -> jax.Array:
        return jnp.swapaxes(array, -1, -2)

    if isinstance(spec, Window):
        y, x = window_positions(locations, spec, origin)
    elif not spec.discrete:
        y, x = bilinear_positions(locations, level)
    else:
        row, column = discrete_pixels(jax.lax.stop_gradient(locations), level)
        nan = taps_first(jnp.isnan(locations).any(-1))
        sampled = read_pixels(pixels, taps_first(row * level.width + column))
        return jnp.swapaxes(jnp.where(nan[..., None], jnp.nan, sampled), -2, -3)
    sampled = interpolate(pixels, taps_first(y), taps_first(x), (level.height, level.width))
    return jnp.swapaxes(sampled, -2, -3)
