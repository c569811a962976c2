"""The max pooling of all detectors: that of Flax, whose gradient reads places instead of searching for them again."""

import itertools
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

Pair = tuple[int, int]


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def max_pool(x: jax.Array, window: Pair, strides: Pair, padding: tuple[Pair, Pair] = ((0, 0), (0, 0))) -> jax.Array:
    """`flax.linen.max_pool` of images [batch, height, width, channels], with its values and gradients.

    It has no derivatives in forward mode, and no second ones.

    >>> max_pool(jnp.array([1.0, 3.0, 2.0]).reshape(1, 1, 3, 1), (1, 2), (1, 1))[0, 0, :, 0].tolist()
    [3.0, 3.0]
    """
    return nn.max_pool(x, window, strides, padding)


def _forward(x, window, strides, padding):
    """The maxima, and the place of each one in its window, from 0, beside x for its shape.

    Of equal pixels the first one is the maximum, as in XLA and in torch; NaN is larger than all numbers.
    """
    padded = jnp.pad(x, ((0, 0), *padding, (0, 0)), constant_values=-jnp.inf)
    counts = [(side - size) // step + 1 for side, size, step in zip(padded.shape[1:3], window, strides, strict=True)]
    place_type = np.min_scalar_type(window[0] * window[1])
    for place, starts in enumerate(_starts(window)):
        rows, columns = (
            slice(start, start + (count - 1) * step + 1, step)
            for start, count, step in zip(starts, counts, strides, strict=True)
        )
        pixels = padded[:, rows, columns]
        if place == 0:
            largest, places = pixels, jnp.zeros(pixels.shape, place_type)
        else:
            stays = (largest >= pixels) | jnp.isnan(largest)
            largest, places = jnp.where(stays, largest, pixels), jnp.where(stays, places, place_type.type(place))
    return largest, (places, x)


def _backward(window, strides, padding, kept, cotangent):
    places, x = kept
    wide = jnp.promote_types(cotangent.dtype, jnp.float32)
    total = jnp.zeros(x.shape, wide)
    for place, starts in enumerate(_starts(window)):
        at_place = jnp.where(places == place, cotangent, 0).astype(wide)
        spread = []
        for axis, (start, step, (before, _)) in enumerate(zip(starts, strides, padding, strict=True), 1):
            end = start - before + (places.shape[axis] - 1) * step + 1
            spread.append((start - before, x.shape[axis] - end, step - 1))
        total += jax.lax.pad(at_place, wide.type(0), [(0, 0, 0), *spread, (0, 0, 0)])
    return (total.astype(x.dtype),)


max_pool.defvjp(_forward, _backward)


def _starts(window):
    """The places in a window, as pairs."""
    return itertools.product(*map(range, window))
