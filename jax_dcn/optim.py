"""Labels of the parameters that predict offsets, for optimizers."""

from typing import Any

import jax

_BRANCHES = frozenset({"conv_offset", "fc_offset", "offset_mask", "sampling_offsets"})
_DCNV3 = frozenset({"offset", "mask", "dw_norm"})  # "offset" alone is also a name in models of users


def offset_labels(params: Any) -> Any:
    """Labels parameters for :func:`optax.multi_transform`, so that offset layers can have their own learning rate.

    Args:
      params: Any tree of parameters: a Linen ``params`` dictionary, an NNX state, or a model's whole variables.

    Returns:
      A tree of the same structure, with the string "offset" for each leaf under a key or attribute named
      ``conv_offset``, ``fc_offset``, ``sampling_offsets`` or ``offset_mask``, which are the names in the layers, or
      under ``offset`` beside ``mask`` and ``dw_norm``, as in `DCNv3`; and "default" for all others. A DCNv4 predicts
      its masks with ``offset_mask`` too. Do not freeze a new one: its masks are zero, and would stay so.

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
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    paths = [_modules(keys) for keys, _ in leaves]
    children: dict[tuple[str, ...], set[str]] = {}
    for path in paths:
        for depth, name in enumerate(path):
            children.setdefault(path[:depth], set()).add(name)

    def predicts_offsets(path: tuple[str, ...]) -> bool:
        in_dcnv3 = (name == "offset" and children[path[:depth]] >= _DCNV3 for depth, name in enumerate(path))
        return not _BRANCHES.isdisjoint(path) or any(in_dcnv3)

    labels = ["offset" if predicts_offsets(path) else "default" for path in paths]
    return jax.tree_util.tree_unflatten(structure, labels)


def _modules(keys: tuple[Any, ...]) -> tuple[str, ...]:
    """The names of the modules that lead to a parameter."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in keys[:-1])
