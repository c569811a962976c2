"""DEIMv2: Huang et al., Real-Time Object Detection Meets DINOv3, arXiv:2509.20787, as transformers has it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from .config import DeimConfig
from .d_fine import BLOCKS, DFine, Gate, SCDown
from .hybrid_encoder import ConvNorm, HybridEncoder, RepVGGBlock, doubled
from .layers import GatedFeedForward, LayerOptions

RMS_EPSILON = 1e-6


class CSP(nn.Module):
    """A cross-stage-partial block: half of the channels of a convolution pass RepVGG blocks."""

    config: DeimConfig
    conv: Callable[..., nn.Module]
    options: LayerOptions
    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        kept, deep = jnp.split(self.conv(2 * self.features, 1, name="conv1")(x), 2, -1)
        for index in range(round(BLOCKS * config.depth_mult)):
            deep = RepVGGBlock(config, self.options, name=f"bottlenecks_{index}")(deep)
        y = kept + deep
        return self.conv(self.features, 3, name="conv2")(y) if config.encoder_has_trailing_conv else y


class ELAN(nn.Module):
    """As that of D-FINE, with other cross-stage-partial blocks."""

    config: DeimConfig
    options: LayerOptions

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config, options, width = self.config, self.options, self.config.encoder_hidden_dim
        conv = partial(ConvNorm, options=options, activation=config.activation_function, epsilon=config.batch_norm_eps)
        found = jnp.split(conv(2 * width, 1, name="conv1")(x), 2, -1)
        for name in ("csp_rep1", "csp_rep2"):
            block = CSP(config, conv, options, round(config.hidden_expansion * width // 2), name=name)
            found.append(block(found[-1]))
        return conv(width, 1, name="conv2")(jnp.concatenate(found, -1))


class LiteEncoder(nn.Module):
    """A map [batch, height, width, channels] to one of its size and one of half that size."""

    config: DeimConfig
    options: LayerOptions

    @nn.compact
    def __call__(self, maps: Sequence[jax.Array]) -> list[jax.Array]:
        config, options = self.config, self.options
        project = partial(ConvNorm, config.encoder_hidden_dim, 1, options, epsilon=config.batch_norm_eps)
        conv = partial(project, activation=config.activation_function)
        fine = project(name="input_proj_0")(maps[0])
        coarse = conv(name="down_conv1")(_halved(fine))
        coarse = conv(name="bi_fusion_conv")(coarse + coarse.mean((1, 2), keepdims=True))
        fine = ELAN(config, options, name="fpn_block")(fine + doubled(coarse))
        coarse = coarse + conv(name="down_conv2")(_halved(fine))
        return [fine, ELAN(config, options, name="pan_block")(coarse)]


def _halved(x):
    """Means of 3x3 pixels, of which those outside the map are zero."""
    return nn.avg_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))


class Deim(DFine):
    """As `DFine`."""

    config: DeimConfig

    @property
    def _position(self) -> tuple[Any, ...]:
        return (self.config.d_model,) * 3, None, self.config.decoder_activation_function

    def _maps(self, images: jax.Array, options: LayerOptions, epsilon: float = 1e-5) -> list[jax.Array]:
        if self.config.encoder_type == "lite":
            return self._backbone()(images, use_running_average=not options.train)
        return super()._maps(images, options, self.config.batch_norm_eps)

    def _encoder(self, options: LayerOptions) -> nn.Module:
        if self.config.encoder_type == "lite":
            return LiteEncoder(self.config, options, name="encoder")
        block, halve = (partial(module, self.config, options) for module in (ELAN, SCDown))
        return HybridEncoder(self.config, options, block, halve, lateral_activation=None, adds=True, name="encoder")

    def _layer(self, options: LayerOptions, **further: Any) -> Callable[..., nn.Module]:
        config, options = self.config, replace(options, centres=False, epsilon=RMS_EPSILON)
        form = {"feed_forward": partial(GatedFeedForward, config.decoder_ffn_dim // 2, options)}
        return super()._layer(options, gate=partial(Gate, options) if config.use_gateway else None, **form | further)
