"""Labels of the parameters that predict offsets, for optimizers."""

from typing import Any

import jax

_BRANCHES = frozenset({"conv_offset", "fc_offset", "offset", "offset_mask", "sampling_offsets"})


def offset_labels(params: Any) -> Any:
    """Labels parameters for :func:`optax.multi_transform`, so that offset layers can have their own learning rate.

    Args:
      params: Any tree of parameters: a Linen ``params`` dictionary, an NNX state, or a model's whole variables.

    Returns:
      A tree of the same structure, with the string "offset" for each leaf under a key or attribute named
      ``conv_offset``, ``fc_offset``, ``sampling_offsets``, ``offset`` or ``offset_mask``, which are the names in the
      layers, and "default" for all others.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jax_dcn import offset_labels
      >>> from jax_dcn.linen import DeformConv
      >>> params = DeformConv(features=8, kernel_size=3).init(jax.random.key(0), jnp.ones([8, 8, 4]))["params"]
      >>> labels = offset_labels(params)
      >>> labels["kernel"], labels["conv_offset"]["kernel"]
      ('default', 'offset')
      >>> optimizer = optax.multi_transform({"default": optax.sgd(1e-2), "offset": optax.sgd(1e-3)}, offset_labels)
      >>> state = optimizer.init(params)
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: _label(path), params)


def _label(path: tuple[Any, ...]) -> str:
    names = (jax.tree_util.keystr((key,), simple=True) for key in path[:-1])
    return "default" if _BRANCHES.isdisjoint(names) else "offset"
