"""The projector of LW-DETR and RF-DETR: maps of a backbone, which all have one size, to a feature pyramid."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype

from examples.library.layers import Doubled, from_windows

from .config import LwDetrConfig, RfDetrConfig
from .hybrid_encoder import ConvNorm
from .layers import LayerOptions

LARGE = 512  # more channels than this are halved before a map is enlarged
EPSILON = 1e-6  # of the last normalisation


class Pair(nn.Module):
    """Two convolutions. conv: makes one, given its name."""

    conv: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.conv(name="conv2")(self.conv(name="conv1")(x))


class C2f(nn.Module):
    """A cross-stage-partial block of YOLOv8: what each pair of convolutions finds is concatenated."""

    config: LwDetrConfig
    conv: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        hidden, form = int(config.d_model * config.hidden_expansion), {"activation": config.activation_function}
        found = jnp.split(self.conv(2 * hidden, 1, name="conv1", **form)(x), 2, -1)
        for index in range(config.c2f_num_blocks):
            found.append(Pair(partial(self.conv, hidden, 3, **form), name=f"bottlenecks_{index}")(found[-1]))
        return self.conv(config.d_model, 1, name="conv2", **form)(jnp.concatenate(found, -1))


class Resize(nn.Module):
    """A map, `scale` times as large."""

    conv: Callable[..., nn.Module]
    scale: float
    dtype: Dtype | None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        features, layers = x.shape[-1], []
        if self.scale == 0.5:
            layers = [partial(self.conv, features, 3, stride=2, activation="relu")]
        elif self.scale == 2.0 and features > LARGE:
            half = partial(self.conv, features // 2, 1, activation="relu")
            layers = [half, partial(Doubled, features // 4, self.dtype)]
        elif self.scale == 2.0:
            layers = [partial(Doubled, features // 2, self.dtype)]
        for index, layer in enumerate(layers):
            x = layer(name=f"layers_{index}")(x)
        return from_windows(x) if self.scale == 2.0 else x


class Level(nn.Module):
    """One level of the pyramid, `scale` times as large as the maps."""

    config: LwDetrConfig
    options: LayerOptions
    conv: Callable[..., nn.Module]
    scale: float

    @nn.compact
    def __call__(self, maps: Sequence[jax.Array]) -> jax.Array:
        resize = partial(Resize, self.conv, self.scale, self.options.dtype)
        resized = [resize(name=f"sampling_layers_{index}")(x) for index, x in enumerate(maps)]
        x = C2f(self.config, self.conv, name="projector_layer")(jnp.concatenate(resized, -1))
        return replace(self.options, epsilon=EPSILON).norm("layer_norm")(x)


class Projector(nn.Module):
    """Maps [batch, height, width, channels] to a map of `d_model` channels for each of the config's scales."""

    config: LwDetrConfig
    options: LayerOptions

    @nn.compact
    def __call__(self, maps: Sequence[jax.Array]) -> list[jax.Array]:
        config, options = self.config, self.options
        conv: Callable[..., nn.Module] = partial(ConvNorm, options=options, epsilon=config.batch_norm_eps)
        if isinstance(config, RfDetrConfig):
            conv = partial(ConvNorm, options=replace(options, epsilon=config.layer_norm_eps), normalises="channels")
        return [
            Level(config, options, conv, scale, name=f"scale_layers_{index}")(maps)
            for index, scale in enumerate(config.projector_scale_factors)
        ]
