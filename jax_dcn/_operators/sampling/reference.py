"""The operator in `jax.numpy`: its definition, the source of its higher derivatives, and its form on any platform."""

import itertools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jax_dcn._operators.sampling.arguments import Operands
from jax_dcn._operators.sampling.geometry import Spec, axis_coordinates, axis_taps


def reference(operands: Operands[jax.Array], *, spec: Spec) -> jax.Array:
    """The samples [..., points, channels]."""
    sample: Any = partial(_sample, spec=spec)
    for _ in operands.locations.shape[:-2]:
        sample = jax.vmap(sample)
    return sample(*operands)


def _sample(x: jax.Array, locations: jax.Array, *, spec: Spec) -> jax.Array:
    """The samples of an image [*sizes, channels]."""
    *sizes, channels = x.shape
    count = math.prod(sizes)
    # A gather needs at least one element to gather from, even if no index selects it.
    pixels = x.astype(locations.dtype).reshape(count, channels)
    pixels = jnp.pad(pixels, [(0, int(isinstance(count, int) and count == 0)), (0, 0)])
    nan = jnp.isnan(locations).any(-2 if spec.planar else -1)
    # If one coordinate of a point is NaN, all are.
    locations = locations + jnp.expand_dims(jnp.where(nan, jnp.nan, 0), -2 if spec.planar else -1)
    sizes = [size if isinstance(size, int) else jnp.asarray(size) for size in sizes]  # of an exported function
    axes = [axis_taps(axis_coordinates(locations, spec, axis), size, spec) for axis, size in enumerate(sizes)]
    sampled = jnp.zeros((*nan.shape, channels), locations.dtype)
    for taps in itertools.product(*axes):
        index, is_read, weight = jnp.zeros((), jnp.int32), ~nan, jnp.ones((), locations.dtype)
        for tap, size in zip(taps, sizes, strict=True):
            index, is_read, weight = index * size + tap.pixel, is_read & (tap.pixel >= 0), weight * tap.weight
        pixel = pixels.at[jnp.where(is_read, index, pixels.shape[0])].get(mode="fill", fill_value=0)
        sampled += weight[..., None] * jnp.where(nan[..., None], jnp.nan, pixel)
    return sampled.astype(x.dtype)
