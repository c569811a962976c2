"""The max pooling of all detectors: that of Flax, with a form for CPUs, where XLA is slow at its gradient."""

import itertools
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

Pair = tuple[int, int]


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def max_pool(x: jax.Array, window: Pair, strides: Pair, padding: tuple[Pair, Pair] = ((0, 0), (0, 0))) -> jax.Array:
    """`flax.linen.max_pool` of images [batch, height, width, channels], with its values and gradients.

    It has no derivatives in forward mode, and no second ones.

    >>> max_pool(jnp.array([1.0, 3.0, 2.0]).reshape(1, 1, 3, 1), (1, 2), (1, 1))[0, 0, :, 0].tolist()
    [3.0, 3.0]
    """
    return _by_platform(lambda pool: pool, window, strides, padding)(x)


def _forward(x, window, strides, padding):
    return max_pool(x, window, strides, padding), x


def _backward(window, strides, padding, x, ct):
    def pull_back(pool):
        return lambda x, ct: jax.vjp(pool, x)[1](ct)

    return _by_platform(pull_back, window, strides, padding)(x, ct)


max_pool.defvjp(_forward, _backward)


def _by_platform(derived: Callable[..., Any], *window: Any) -> Callable[..., Any]:
    """Applies `derived` to the form for the platform that a program is compiled for."""
    forms = {"cpu": partial(_of_shifts, window), "default": lambda x: nn.max_pool(x, *window)}
    return partial(jax.lax.platform_dependent, **{name: derived(form) for name, form in forms.items()})


def _of_shifts(window, x):
    (height, width), (down, right), padding = window
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)), constant_values=-jnp.inf)
    rows, columns = (x.shape[1] - height) // down + 1, (x.shape[2] - width) // right + 1
    places = itertools.product(range(height), range(width))
    shifted = (x[:, i : i + rows * down : down, j : j + columns * right : right] for i, j in places)
    return reduce(_first_maximum, (pixels[:, :rows, :columns] for pixels in shifted))


def _first_maximum(a, b):
    """The larger one, or NaN. If both are equal, the first one has the whole cotangent, as in XLA and in torch."""
    return jnp.where((a >= b) | jnp.isnan(a), a, b)
