"""The operator in `jax.numpy`: its definition, the source of its higher derivatives, and its form on any platform."""

import itertools
import math
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp

from jax_dcn._operators.sampling.arguments import Operands, axis_coordinates
from jax_dcn._operators.sampling.geometry import Spec, axis_taps


def reference(operands: Operands[jax.Array], *, spec: Spec) -> jax.Array:
    """The samples [..., points, channels]."""
    sample: Any = partial(_sample, spec=spec)
    coordinates = axis_coordinates(operands)
    for _ in coordinates[0].shape[:-1]:
        sample = jax.vmap(sample)
    return sample(operands.x, coordinates)


def _sample(x: jax.Array, coordinates: list[jax.Array], *, spec: Spec) -> jax.Array:
    """The samples of an image [*sizes, channels] at coordinates [points] along each axis."""
    *sizes, channels = x.shape
    count = math.prod(sizes)
    # A gather needs at least one element to gather from, even if no index selects it.
    wide = coordinates[0].dtype
    pixels = x.astype(wide).reshape(count, channels)
    pixels = jnp.pad(pixels, [(0, int(isinstance(count, int) and count == 0)), (0, 0)])
    nan = reduce(jnp.logical_or, map(jnp.isnan, coordinates))
    # If one coordinate of a point is NaN, all are.
    coordinates = [coordinate + jnp.where(nan, jnp.nan, 0) for coordinate in coordinates]
    sizes = [size if isinstance(size, int) else jnp.asarray(size) for size in sizes]  # of an exported function
    axes = [axis_taps(coordinate, size, spec) for coordinate, size in zip(coordinates, sizes, strict=True)]
    sampled = jnp.zeros((*nan.shape, channels), wide)
    for taps in itertools.product(*axes):
        index, is_read, weight = jnp.zeros((), jnp.int32), ~nan, jnp.ones((), wide)
        for tap, size in zip(taps, sizes, strict=True):
            index, is_read, weight = index * size + tap.pixel, is_read & (tap.pixel >= 0), weight * tap.weight
        pixel = pixels.at[jnp.where(is_read, index, pixels.shape[0])].get(mode="fill", fill_value=0)
        sampled += weight[..., None] * jnp.where(nan[..., None], jnp.nan, pixel)
    return sampled.astype(x.dtype)
