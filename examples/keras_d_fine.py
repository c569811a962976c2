"""D-FINE of keras-hub, on Keras with the backend "jax", with this package's operator.

`use_kernels(model)` replaces the sampling of each decoder layer, which keras-hub computes with gathers in Keras's
operations. Parameters, checkpoints and `fit` stay as they are. Neither Keras nor keras-hub is imported here.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_dcn import multi_scale_deformable_attention

METHODS = {"default": "bilinear", "discrete": "discrete"}


def use_kernels(model: Any) -> Any:
    """The same model, whose deformable attention from now on calls `sample`.

    Call it before the first `predict`, `fit` or `jit`: what is compiled keeps the operator it was compiled with.
    """
    layers = [layer for layer in model._flatten_layers() if hasattr(layer, "ms_deformable_attn_core")]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no layer with the deformable attention of keras-hub's D-FINE")
    for layer in layers:
        layer.ms_deformable_attn_core = sample
    return model


def sample(
    value: jax.Array,
    _level_sizes: jax.Array,
    sampling_locations: jax.Array,
    attention_weights: jax.Array,
    num_points: Sequence[int],
    _pixels: Sequence[int],
    spatial_shapes: Sequence[Sequence[int]],
    _num_levels: int,
    _num_queries: int,
    method: str = "default",
) -> jax.Array:
    """The arguments and the result of keras-hub's `multi_scale_deformable_attention_v2`.

    value [N, S, heads, channels], sampling_locations [N, Q, heads, sum(num_points), 2] and attention_weights [N, Q,
    heads, sum(num_points)] give [N, Q, heads · channels]. Locations of a 16-bit policy are taken as float32.
    """
    if not isinstance(value, jax.Array):
        raise TypeError(f"the value is a {type(value).__name__}: set KERAS_BACKEND=jax before keras is imported")
    return multi_scale_deformable_attention(
        value,
        sampling_locations.astype(jnp.promote_types(sampling_locations.dtype, jnp.float32)),
        attention_weights,
        spatial_shapes=spatial_shapes,
        points=num_points,
        method=METHODS[method],
    )
