"""The encoder of RT-DETR, D-FINE and DEIMv2: attention within maps, then convolutions down and up the pyramid."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.library.layers import BatchNorm, square

from .attention import SelfAttention
from .config import RTDetrConfig
from .layers import ACTIVATIONS, EncoderLayer, LayerOptions
from .positions import sines_of_grid

REPVGG_BLOCKS = 3


class ConvNorm(nn.Module):
    """A convolution without bias, its normalisation, and an activation if it has one.

    normalises: over a "batch" with this epsilon, or over "channels" with that of the options.
    """

    features: int
    size: int
    options: LayerOptions
    stride: int = 1
    activation: str | None = None
    epsilon: float = 1e-5
    groups: int = 1
    normalises: Literal["batch", "channels"] = "batch"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        options = self.options
        form = {"feature_group_count": self.groups, "use_bias": False, "dtype": options.dtype}
        x = square(self.features, self.size, self.stride, **form, name="conv")(x)
        if self.normalises == "channels":
            x = options.norm("norm")(x)
        else:
            x = BatchNorm(not options.train, epsilon=self.epsilon, dtype=options.dtype, name="norm")(x)
        return ACTIVATIONS[self.activation](x) if self.activation else x


class RepVGGBlock(nn.Module):
    """A 3x3 and a 1x1 convolution side by side."""

    config: RTDetrConfig
    options: LayerOptions

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv = partial(ConvNorm, x.shape[-1], options=self.options, epsilon=self.config.batch_norm_eps)
        wide, narrow = (conv(size=size, name=name)(x) for name, size in (("conv1", 3), ("conv2", 1)))
        return ACTIVATIONS[self.config.activation_function](wide + narrow)


class CSPRepLayer(nn.Module):
    """A cross-stage-partial block: one part of the channels passes RepVGG blocks, the other part a convolution.

    features: of the result; hidden: of both parts, by default `features` times the config's `hidden_expansion`.
    """

    config: RTDetrConfig
    options: LayerOptions
    features: int
    hidden: int | None = None
    blocks: int = REPVGG_BLOCKS

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        conv = partial(
            ConvNorm, size=1, options=self.options, activation=config.activation_function, epsilon=config.batch_norm_eps
        )
        hidden = self.hidden or int(self.features * config.hidden_expansion)
        deep = conv(hidden, name="conv1")(x)
        for index in range(self.blocks):
            deep = RepVGGBlock(config, self.options, name=f"bottlenecks_{index}")(deep)
        y = deep + conv(hidden, name="conv2")(x)
        return y if hidden == self.features else conv(self.features, name="conv3")(y)


class IntraScale(nn.Module):
    """Attention among the pixels of one map [batch, height, width, channels]."""

    config: RTDetrConfig
    options: LayerOptions

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        options = replace(self.options, attention_dropout=self.options.dropout)
        batch, height, width, channels = x.shape
        position = sines_of_grid(height, width, channels, config.positional_encoding_temperature)
        pixels = x.reshape(batch, -1, channels)
        attention = partial(SelfAttention, config.encoder_attention_heads, options)
        ffn = config.encoder_ffn_dim, config.encoder_activation_function
        for index in range(config.encoder_layers):
            layer = EncoderLayer(attention, *ffn, options, name=f"layers_{index}")
            pixels = layer(pixels, pixels, position.astype(x.dtype))
        return pixels.reshape(x.shape)


class HybridEncoder(nn.Module):
    """Maps [batch, height, width, channels], each half as large as the one before it, to maps of the same sizes.

    block, halve: make the layers that merge two maps, and that halve a map; each is given its name. adds: whether two
    maps are added, and not concatenated.
    """

    config: RTDetrConfig
    options: LayerOptions
    block: Callable[..., nn.Module]
    halve: Callable[..., nn.Module]
    lateral_activation: str | None
    adds: bool = False

    @nn.compact
    def __call__(self, maps: Sequence[jax.Array]) -> list[jax.Array]:
        config, options = self.config, self.options
        width, form = config.encoder_hidden_dim, {"activation": self.lateral_activation}
        lateral = partial(ConvNorm, width, 1, options, epsilon=config.batch_norm_eps, **form)
        maps = list(maps)
        if config.encoder_layers:
            for index, level in enumerate(config.encode_proj_layers):
                maps[level] = IntraScale(config, options, name=f"aifi_{index}")(maps[level])
        down = [maps[-1]]
        for index, finer in enumerate(maps[-2::-1]):
            coarse = lateral(name=f"lateral_convs_{index}")(down[-1])
            both = self._joined(doubled(coarse), finer)
            down[-1:] = [coarse, self.block(name=f"fpn_blocks_{index}")(both)]
        up = [down.pop()]
        for index, coarser in enumerate(reversed(down)):
            halved = self.halve(name=f"downsample_convs_{index}")(up[-1])
            both = self._joined(halved, coarser)
            up.append(self.block(name=f"pan_blocks_{index}")(both))
        return up

    def _joined(self, x, y):
        return x + y if self.adds else jnp.concatenate([x, y], -1)


def doubled(x: jax.Array) -> jax.Array:
    """A map of twice the size, by its nearest pixels."""
    return x.repeat(2, 1).repeat(2, 2)
