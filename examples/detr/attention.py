"""Self attention of the encoders, decoders and backbones."""

import math
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from examples.library.layers import Dense

from .layers import LayerOptions

BLOCK = 2**21  # scores that are computed together on a CPU: they stay in its caches


class SelfAttention(nn.Module):
    """Attention among x [..., length, channels]; `position`, of the same shape, is added to queries and keys only.

    key_bias: whether keys have a bias. hidden: bool [length, length], whether the query of a row does not see that of a
    column; by default, each sees all.
    """

    heads: int
    options: LayerOptions
    key_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, position: jax.Array | None = None, hidden: jax.Array | None = None) -> jax.Array:
        options, length = self.options, x.shape[-2]
        if options.dtype is not None and jnp.dtype(options.dtype).itemsize == 2:
            x, position, hidden = _aligned(x, position, hidden)
        dense = partial(Dense, x.shape[-1], dtype=options.dtype)
        located = x if position is None else x + position.astype(x.dtype)
        query = self._split(dense(name="q_proj")(located))
        key = self._split(dense(name="k_proj", use_bias=self.key_bias)(located))
        value = self._split(dense(name="v_proj")(x))
        if options.train and options.attention_dropout > 0:
            dropout = {"dropout_rng": self.make_rng("dropout"), "dropout_rate": options.attention_dropout}
            attended = attend_at_once(query, key, value, hidden, deterministic=False, **dropout)
        else:
            forms = {"cpu": attend_in_blocks, "default": attend_at_once}
            attended = jax.lax.platform_dependent(query, key, value, hidden, **forms)
        return dense(name="o_proj")(attended.reshape(x.shape))[..., :length, :]

    def _split(self, x):
        return x.reshape(*x.shape[:-1], self.heads, -1)


def _aligned(x, position, hidden):
    """With further rows, which no query sees, to a multiple of 8. XLA pads products of 16 bits to that on a GPU, and
    those of attention have operands that are many times larger."""
    length = x.shape[-2]
    extra = -length % 8
    if not extra:
        return x, position, hidden

    def longer(part):
        return None if part is None else jnp.pad(part, [(0, 0)] * (part.ndim - 2) + [(0, extra), (0, 0)])

    hidden = longer(np.zeros((length, length), bool) if hidden is None else hidden)
    return longer(x), longer(position), jnp.pad(hidden, [(0, 0), (0, extra)], constant_values=True)


def attend_at_once(
    query: jax.Array, key: jax.Array, value: jax.Array, hidden: jax.Array | None, **dropout: Any
) -> jax.Array:
    """Operands and result [..., length, heads, channels]."""
    return nn.dot_product_attention(query, key, value, mask=None if hidden is None else ~hidden, **dropout)


def attend_in_blocks(query: jax.Array, key: jax.Array, value: jax.Array, hidden: jax.Array | None) -> jax.Array:
    """The same, for a block of queries after the other; their scores are computed again for gradients (Rabe and Staats,
    Self-attention Does Not Need O(n²) Memory, arXiv:2112.05682)."""
    *_, length, heads, channels = query.shape
    blocks = min(length, math.ceil(heads * length**2 / BLOCK))
    rows = -(-length // blocks)

    def split(array):  # along the queries, which are the first axis
        padded = jnp.pad(array, [(0, blocks * rows - length)] + [(0, 0)] * (array.ndim - 1))
        return padded.reshape(blocks, rows, *array.shape[1:])

    hidden_rows = None if hidden is None else split(hidden)

    def of_sequence(operands):
        query, key, value = operands
        attend = jax.checkpoint(lambda block: _attend(block[0], key, value, block[1]))
        found = jax.lax.map(attend, (split(query / np.sqrt(channels).astype(query.dtype)), hidden_rows))
        return found.reshape(-1, heads, channels)[:length]

    sequences = [array.reshape(-1, length, heads, channels) for array in (query, key, value)]
    return jax.lax.map(of_sequence, sequences).reshape(query.shape)


def _attend(query: jax.Array, key: jax.Array, value: jax.Array, hidden: jax.Array | None) -> jax.Array:
    """Of one sequence, with queries that are scaled. The sum of the weights is a product with ones, because XLA for
    CPUs sums over rows slowly."""
    wide = jnp.promote_types(query.dtype, jnp.float32)
    scores = jnp.einsum("qhc,khc->hqk", query, key, preferred_element_type=wide)
    if hidden is not None:
        scores = jnp.where(hidden, jnp.finfo(wide).min, scores)
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    values = jnp.concatenate([value, jnp.ones_like(value[..., :1])], -1)
    sums = jnp.einsum("hqk,khc->qhc", weights.astype(value.dtype), values, preferred_element_type=wide)
    return (sums[..., :-1] / sums[..., -1:]).astype(value.dtype)
