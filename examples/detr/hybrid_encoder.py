"""RT-DETR's encoder: attention within the coarsest maps, then convolutions down and up the pyramid."""

from collections.abc import Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from .config import RTDetrConfig
from .layers import ACTIVATIONS, EncoderLayer, SelfAttention
from .positions import sines_of_grid

REPVGG_BLOCKS = 3


class ConvNorm(nn.Module):
    """A convolution without bias, its normalisation, and an activation if it has one."""

    features: int
    size: int
    stride: int = 1
    activation: str | None = None
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array, use_running_average: bool) -> jax.Array:
        conv = nn.Conv(
            self.features,
            (self.size, self.size),
            strides=self.stride,
            padding=self.size // 2,
            use_bias=False,
            name="conv",
        )
        norm = nn.BatchNorm(
            use_running_average, momentum=0.9, epsilon=self.epsilon, use_fast_variance=False, name="norm"
        )
        x = norm(conv(x))
        return ACTIVATIONS[self.activation](x) if self.activation else x


class RepVGGBlock(nn.Module):
    """A 3x3 and a 1x1 convolution side by side."""

    config: RTDetrConfig

    @nn.compact
    def __call__(self, x: jax.Array, use_running_average: bool) -> jax.Array:
        conv = partial(ConvNorm, x.shape[-1], epsilon=self.config.batch_norm_eps)
        wide, narrow = (conv(size, name=name)(x, use_running_average) for name, size in (("conv1", 3), ("conv2", 1)))
        return ACTIVATIONS[self.config.activation_function](wide + narrow)


class CSPRepLayer(nn.Module):
    """A cross-stage-partial block: one half of the channels passes RepVGG blocks, the other half a convolution."""

    config: RTDetrConfig

    @nn.compact
    def __call__(self, x: jax.Array, use_running_average: bool) -> jax.Array:
        config = self.config
        conv = partial(ConvNorm, size=1, activation=config.activation_function, epsilon=config.batch_norm_eps)
        features = int(config.encoder_hidden_dim * config.hidden_expansion)
        deep = conv(features, name="conv1")(x, use_running_average)
        for index in range(REPVGG_BLOCKS):
            deep = RepVGGBlock(config, name=f"bottlenecks_{index}")(deep, use_running_average)
        y = deep + conv(features, name="conv2")(x, use_running_average)
        if features == config.encoder_hidden_dim:
            return y
        return conv(config.encoder_hidden_dim, name="conv3")(y, use_running_average)


class IntraScale(nn.Module):
    """Attention among the pixels of one map [batch, height, width, channels]."""

    config: RTDetrConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        batch, height, width, channels = x.shape
        position = sines_of_grid(height, width, channels, config.positional_encoding_temperature)
        pixels = x.reshape(batch, -1, channels)
        attention = partial(SelfAttention, config.encoder_attention_heads)
        ffn = config.encoder_ffn_dim, config.encoder_activation_function
        for index in range(config.encoder_layers):
            layer = EncoderLayer(attention, *ffn, config.layer_norm_eps, name=f"layers_{index}")
            pixels = layer(pixels, pixels, position.astype(x.dtype))
        return pixels.reshape(x.shape)


class HybridEncoder(nn.Module):
    """Maps [batch, height, width, channels], each half as large as the one before it, to maps of the same sizes."""

    config: RTDetrConfig

    @nn.compact
    def __call__(self, maps: Sequence[jax.Array], use_running_average: bool) -> list[jax.Array]:
        config = self.config
        conv = partial(
            ConvNorm, config.encoder_hidden_dim, activation=config.activation_function, epsilon=config.batch_norm_eps
        )
        maps = list(maps)
        if config.encoder_layers:
            for index, level in enumerate(config.encode_proj_layers):
                maps[level] = IntraScale(config, name=f"aifi_{index}")(maps[level])
        down = [maps[-1]]
        for index, finer in enumerate(maps[-2::-1]):
            coarse = conv(1, name=f"lateral_convs_{index}")(down[-1], use_running_average)
            both = jnp.concatenate([_doubled(coarse), finer], -1)
            down[-1:] = [coarse, CSPRepLayer(config, name=f"fpn_blocks_{index}")(both, use_running_average)]
        up = [down.pop()]
        for index, coarser in enumerate(reversed(down)):
            halved = conv(3, 2, name=f"downsample_convs_{index}")(up[-1], use_running_average)
            both = jnp.concatenate([halved, coarser], -1)
            up.append(CSPRepLayer(config, name=f"pan_blocks_{index}")(both, use_running_average))
        return up


def _doubled(x):
    return x.repeat(2, 1).repeat(2, 2)
