"""Gradients of a batch, whose parts may be processed one after another, and optimisers by group of parameters."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax


def gradients(
    loss: Callable[[Any, Any, Any, Any], tuple[dict[str, jax.Array], Any]],
    params: Any,
    carry: Any,
    batch: Any,
    parts: int,
) -> tuple[Any, dict[str, jax.Array], Any]:
    """The gradients of a loss, the scalars that it consists of, both as means over the parts, and the last carry.

    loss: takes the parameters, what the part before handed on, a part of the batch and its number; returns scalars by
    name, whose sum is the loss, and what it hands on.
    """

    def of_part(carry, numbered):
        number, part = numbered

        def total(params):
            found, after = loss(params, carry, part, number)
            return sum(found.values()), (found, after)

        slopes, (found, after) = jax.grad(total, has_aux=True)(params)
        return after, (slopes, found)

    if parts == 1:
        carry, (slopes, found) = of_part(carry, (0, batch))
        return slopes, found, carry
    # Each part has images of every device.
    divided = jax.tree.map(lambda leaf: leaf.reshape(-1, parts, *leaf.shape[1:]).swapaxes(0, 1), batch)

    def add(state, numbered):
        carry, total = state
        carry, (slopes, found) = of_part(carry, numbered)
        return (carry, jax.tree.map(jnp.add, total, slopes)), found

    start = carry, jax.tree.map(jnp.zeros_like, params)
    (carry, total), stacked = jax.lax.scan(add, start, (jnp.arange(parts), divided))
    return jax.tree.map(lambda leaf: leaf / parts, total), jax.tree.map(jnp.mean, stacked), carry


def described_rates(rates: Mapping[str, float]) -> str:
    """The learning rates of groups of parameters at their peak in words.

    >>> described_rates({"default": 1e-4, "backbone": 2e-9})
    'Peak learning rates: default 0.0001, backbone 2e-09'
    """
    return f"Peak learning rates: {', '.join(f'{name} {rate:.3g}' for name, rate in rates.items())}"


def by_group(
    optimisers: Mapping[str, optax.GradientTransformation], label: Callable[[Any, Any], str], clip_norm: float
) -> optax.GradientTransformation:
    """An optimiser for each group of parameters, after clipping the norm of all gradients together.

    label: from a path of jax.tree_util and the parameter there to its group. Those of the group "frozen" stay what they
    are, and do not count in the norm.
    """
    labels = partial(jax.tree_util.tree_map_with_path, label)

    def frozen(params):
        return jax.tree.map(lambda group: group == "frozen", labels(params))

    return optax.chain(
        optax.masked(optax.set_to_zero(), frozen),
        optax.clip_by_global_norm(clip_norm),
        optax.partition({**optimisers, "frozen": optax.set_to_zero()}, labels),
    )
