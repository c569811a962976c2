"""The layers that the encoders and decoders of all models share."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype

from examples.library.layers import Dense, relu

ACTIVATIONS = {"relu": relu, "silu": nn.silu, "swish": nn.silu, "gelu": partial(nn.gelu, approximate=False)}


@dataclass(frozen=True)
class LayerOptions:
    """What all layers of a transformer share.

    train: whether batch normalisations use the statistics of the batch, and dropout is on. dtype: of products and
    convolutions, by default that of their operands. epsilon: of layer normalisations. centres: as of `LayerNorm`.
    dropout: of what is added to the input of a layer; attention_dropout: of the weights of self attention;
    activation_dropout: between the layers of feed-forward networks.
    """

    train: bool = False
    dtype: Dtype | None = None
    epsilon: float = 1e-5
    centres: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0

    @classmethod
    def of(cls, config: Any, train: bool, dtype: Dtype | None, epsilon: float = 1e-5) -> "LayerOptions":
        """The options of a model, from the rates of dropout in its config."""
        return cls(train, dtype, epsilon, True, config.dropout, config.attention_dropout, config.activation_dropout)

    def norm(self, name: str) -> "LayerNorm":
        """A layer normalisation as in PyTorch: the variance is the mean of squared differences."""
        return LayerNorm(self.epsilon, self.dtype, self.centres, name=name)

    def drop(self, x: jax.Array, rate: float) -> jax.Array:
        """Dropout; makes a layer of the calling module."""
        return nn.Dropout(rate, deterministic=not self.train)(x)


class LayerNorm(nn.Module):
    """`flax.linen.LayerNorm` over the last axis, with the same parameters, whose gradients are products on a CPU.

    Where XLA for CPUs sums over rows what it also computes, as the gradients of flax's layer do, it is slow.
    centres: whether the mean is subtracted and a bias is added; else it is `flax.linen.RMSNorm`.
    """

    epsilon: float
    dtype: Dtype | None
    centres: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        if not self.centres:
            normalised = nn.RMSNorm(self.epsilon, dtype=scale.dtype, use_scale=False)(x)
            return (normalised * _in_rows(scale, x.shape)).astype(self.dtype or jnp.result_type(x, scale))
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        options = {"use_scale": False, "use_bias": False, "use_fast_variance": False}
        normalised = nn.LayerNorm(self.epsilon, dtype=scale.dtype, **options)(x)
        y = normalised * _in_rows(scale, x.shape) + _in_rows(bias, x.shape)
        return y.astype(self.dtype or jnp.result_type(x, scale))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _in_rows(row: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """An array of this shape, each of whose rows is the given one."""
    return jnp.broadcast_to(row, shape)


def _in_rows_forward(row, shape):
    return _in_rows(row, shape), None


def _in_rows_backward(shape, _, ct):
    ct = ct.reshape(-1, shape[-1])
    forms = {"cpu": lambda ct: jnp.ones(len(ct), ct.dtype) @ ct, "default": lambda ct: ct.sum(0)}
    return (jax.lax.platform_dependent(ct, **forms),)


_in_rows.defvjp(_in_rows_forward, _in_rows_backward)


class FeedForward(nn.Module):
    """Two dense layers with an activation between them."""

    features: int
    activation: str
    options: LayerOptions

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtype = self.options.dtype
        hidden = ACTIVATIONS[self.activation](Dense(self.features, dtype=dtype, name="fc1")(x))
        hidden = self.options.drop(hidden, self.options.activation_dropout)
        return Dense(x.shape[-1], dtype=dtype, name="fc2")(hidden)


class GatedFeedForward(nn.Module):
    """Two dense layers, of which the first is multiplied by an activated one (SwiGLU, arXiv 2002.05202)."""

    features: int
    options: LayerOptions

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dense = partial(Dense, dtype=self.options.dtype)
        gate, up = (dense(self.features, name=name)(x) for name in ("gate_proj", "up_proj"))
        hidden = self.options.drop(nn.silu(gate) * up, self.options.activation_dropout)
        return dense(x.shape[-1], name="down_proj")(hidden)


class EncoderLayer(nn.Module):
    """Attention and a feed-forward network, each added to its input and normalised.

    attention: makes the layer of attention, given its name; it is called with all arguments but x.
    """

    attention: Callable[..., nn.Module]
    ffn_features: int
    activation: str
    options: LayerOptions

    @nn.compact
    def __call__(self, x: jax.Array, *inputs: jax.Array, **keywords: Any) -> jax.Array:
        options = self.options
        attended = self.attention(name="self_attn")(*inputs, **keywords)
        x = options.norm("self_attn_layer_norm")(x + options.drop(attended, options.dropout))
        y = FeedForward(self.ffn_features, self.activation, options, name="mlp")(x)
        return options.norm("final_layer_norm")(x + options.drop(y, options.dropout))


class Head(nn.Module):
    """Dense layers of `features` outputs, activated but for the last. At first they predict `first`, if it is set."""

    features: tuple[int, ...]
    first: float | tuple[float, ...] | None = None
    activation: str = "relu"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        last: dict[str, Any] = {}
        if self.first is not None:
            first = jnp.array(self.first)
            last = {"kernel_init": nn.initializers.zeros, "bias_init": lambda _, *about: jnp.full(about[0], first)}
        *hidden, features = self.features
        for index, width in enumerate(hidden):
            x = ACTIVATIONS[self.activation](Dense(width, name=f"layers_{index}")(x))
        return Dense(features, name=f"layers_{len(hidden)}", **last)(x)


def class_head(classes: int, name: str) -> Dense:
    """A classifier whose scores are 0.01 at first, as for focal losses."""
    return Dense(classes, bias_init=nn.initializers.constant(-math.log(99)), name=name)


def box_head(features: int, name: str, first: tuple[float, ...] = (0.0,) * 4) -> Head:
    """Predicts the change of a box in logits, at first `first`."""
    return Head((features, features, 4), first, name=name)
