"""The layers that the encoders and decoders of both models share."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax

ACTIVATIONS = {"relu": nn.relu, "silu": nn.silu, "gelu": partial(nn.gelu, approximate=False)}


def layer_norm(name: str, epsilon: float = 1e-5) -> nn.LayerNorm:
    """A layer normalisation as in PyTorch: the variance is the mean of squared differences."""
    return nn.LayerNorm(epsilon=epsilon, use_fast_variance=False, name=name)


class SelfAttention(nn.Module):
    """Attention among x [batch, length, channels]; `position`, of the same shape, is added to queries and keys only."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, position: jax.Array) -> jax.Array:
        located = x + position
        sources = {"q_proj": located, "k_proj": located, "v_proj": x}
        query, key, value = (self._split(nn.Dense(x.shape[-1], name=name)(part)) for name, part in sources.items())
        attended = nn.dot_product_attention(query, key, value)
        return nn.Dense(x.shape[-1], name="o_proj")(attended.reshape(x.shape))

    def _split(self, x):
        return x.reshape(*x.shape[:-1], self.heads, -1)


class FeedForward(nn.Module):
    """Two dense layers with an activation between them."""

    features: int
    activation: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = ACTIVATIONS[self.activation](nn.Dense(self.features, name="fc1")(x))
        return nn.Dense(x.shape[-1], name="fc2")(hidden)


class EncoderLayer(nn.Module):
    """Attention and a feed-forward network, each added to its input and normalised.

    attention: makes the layer of attention, given its name; it is called with all arguments but x.
    """

    attention: Callable[..., nn.Module]
    ffn_features: int
    activation: str
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array, *inputs: jax.Array, **options: Any) -> jax.Array:
        attended = self.attention(name="self_attn")(*inputs, **options)
        x = layer_norm("self_attn_layer_norm", self.epsilon)(x + attended)
        y = FeedForward(self.ffn_features, self.activation, name="mlp")(x)
        return layer_norm("final_layer_norm", self.epsilon)(x + y)


class Head(nn.Module):
    """Dense layers of `features` outputs, with ReLU between them; the last starts at zero if `zero` is set."""

    features: tuple[int, ...]
    zero: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        last = len(self.features) - 1
        for index, features in enumerate(self.features):
            kernel_init = nn.initializers.zeros if self.zero and index == last else nn.initializers.lecun_normal()
            x = nn.Dense(features, kernel_init=kernel_init, name=f"layers_{index}")(x)
            x = nn.relu(x) if index < last else x
        return x


def class_head(classes: int, name: str) -> nn.Dense:
    """A classifier whose scores are 0.01 at first, as for focal losses."""
    return nn.Dense(classes, bias_init=nn.initializers.constant(-math.log(99)), name=name)


def box_head(features: int, name: str) -> Head:
    """Predicts the change of a box, which is none at first."""
    return Head((features, features, 4), zero=True, name=name)
