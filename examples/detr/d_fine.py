"""D-FINE: Peng et al., Redefine Regression Task in DETRs as Fine-grained Distribution Refinement, arXiv:2410.13842."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.hgnet import HGNet
from examples.library.layers import Dense

from .config import DFineConfig
from .decoder import DecoderLayer, Detections, Predictions, move
from .hybrid_encoder import ConvNorm, CSPRepLayer, HybridEncoder
from .layers import Head, LayerOptions, box_head
from .positions import Pyramid
from .rt_detr import METHODS, RTDetr

POSITION_LIMIT = 10.0  # of the position embeddings of queries
BLOCKS = 3


class ELAN(nn.Module):
    """RepNCSPELAN4 (YOLOv9, arXiv 2402.13616): two cross-stage-partial blocks, whose results are all concatenated."""

    config: DFineConfig
    options: LayerOptions

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config, options = self.config, self.options
        width, blocks = config.encoder_hidden_dim, round(BLOCKS * config.depth_mult)
        narrow = round(config.hidden_expansion * width // 2)
        conv = partial(ConvNorm, options=options, activation="silu", epsilon=config.batch_norm_eps)
        found = jnp.split(conv(2 * width, 1, name="conv1")(x), 2, -1)
        for block, name in (("csp_rep1", "conv2"), ("csp_rep2", "conv3")):
            y = CSPRepLayer(config, options, narrow, narrow, blocks, name=block)(found[-1])
            found.append(conv(narrow, 3, name=name)(y))
        return conv(width, 1, name="conv4")(jnp.concatenate(found, -1))


class SCDown(nn.Module):
    """Halves a map: a 1x1 convolution, and a depthwise one of stride 2."""

    config: DFineConfig
    options: LayerOptions

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = self.config.encoder_hidden_dim
        conv = partial(ConvNorm, width, options=self.options, epsilon=self.config.batch_norm_eps)
        return conv(size=3, stride=2, groups=width, name="conv2")(conv(size=1, name="conv1")(x))


class Gate(nn.Module):
    """A learned mean of two arrays, normalised."""

    options: LayerOptions

    @nn.compact
    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        both = jnp.concatenate([x, y], -1)
        gate = Dense(both.shape[-1], kernel_init=nn.initializers.zeros, dtype=self.options.dtype, name="gate")(both)
        first, second = jnp.split(jax.nn.sigmoid(gate), 2, -1)
        return self.options.norm("norm")(first * x + second * y)


class LocationQuality(nn.Module):
    """What the shape of the distributions [..., 4, bins + 1] of a box says about its quality: [..., 1]."""

    config: DFineConfig

    @nn.compact
    def __call__(self, corners: jax.Array) -> jax.Array:
        config = self.config
        best = jax.lax.top_k(jax.nn.softmax(corners), config.top_prob_values)[0]
        statistics = jnp.concatenate([best, best.mean(-1, keepdims=True)], -1)
        features = (config.lqe_hidden_dim,) * (config.lqe_layers - 1) + (1,)
        return Head(features, first=0.0, name="reg_conf")(statistics.reshape(*corners.shape[:-2], -1))


class FineDecoder(nn.Module):
    """Queries and their boxes to predictions; each layer refines the distributions of the one before it.

    layer: makes one, given its name.
    """

    config: DFineConfig
    layer: Callable[..., nn.Module]

    @nn.compact
    def __call__(
        self,
        queries: jax.Array,
        reference: jax.Array,
        position: nn.Module,
        memory: Pyramid,
        class_heads: list[nn.Module],
        corner_heads: list[nn.Module],
        first_box_head: nn.Module,
        hidden: jax.Array | None,
        layers: int,
    ) -> Predictions:
        """Runs the first `layers` layers.

        queries: [batch, queries, channels]; reference: boxes [batch, queries, 4]; position: from boxes to position
        embeddings; class_heads, corner_heads: one for each layer; hidden: which queries do not see each other.
        """
        config, distribution = self.config, self.config.distribution
        found, corners, before = [], 0.0, 0.0
        for index in range(layers):
            embedding = jnp.clip(position(reference), -POSITION_LIMIT, POSITION_LIMIT).astype(queries.dtype)
            layer = self.layer(name=f"layers_{index}")
            queries = layer(queries, embedding, reference[:, :, None], memory, hidden)
            wide = queries.astype(reference.dtype)
            scores = class_heads[index](wide)
            if index == 0:
                first = Detections(scores, move(reference, first_box_head(wide)))
                start = jax.lax.stop_gradient(first.boxes)
            change = corner_heads[index](wide + before)
            corners = corners + change.reshape(*change.shape[:-1], 4, -1)
            quality = LocationQuality(config, name=f"lqe_layers_{index}")(corners)
            boxes = distribution.boxes(start, corners)
            found.append((scores + quality, boxes, corners))
            reference, before = jax.lax.stop_gradient((boxes, wide))
        logits, boxes, corners = (jnp.stack(parts) for parts in zip(*found, strict=True))
        return Predictions(logits, boxes, first, corners, start)


class DFine(RTDetr):
    """As `RTDetr`. In inference, layers after the config's `eval_idx` do not run."""

    config: DFineConfig

    keeps_equal: ClassVar = True

    def _backbone(self) -> nn.Module:
        return HGNet(self.config.backbone, self.config.freeze_backbone_batch_norms, self.dtype, name="backbone")

    def _encoder(self, options: LayerOptions) -> nn.Module:
        block, halve = (partial(module, self.config, options) for module in (ELAN, SCDown))
        return HybridEncoder(self.config, options, block, halve, lateral_activation=None, name="encoder")

    def _decoded(self, options: LayerOptions, inputs: Any, hidden: jax.Array | None, trains: bool) -> Predictions:
        config, width, bins = self.config, self.config.d_model, 4 * (self.config.max_num_bins + 1)
        layers = config.decoder_layers if trains else config.eval_idx % config.decoder_layers + 1
        count = 1 if config.share_bbox_head else config.decoder_layers
        corners = [Head((width, width, bins), 0.0, name=f"bbox_embed_{index}") for index in range(count)]
        corners *= config.decoder_layers // count
        first = box_head(width, "pre_bbox_head")
        return FineDecoder(config, self._layer(options), name="decoder")(*inputs, corners, first, hidden, layers)

    def _layer(self, options: LayerOptions, **further: Any) -> Callable[..., nn.Module]:
        """Makes a layer of the decoder, given its name. The config's `layer_norm_eps` does not hold in its gate."""
        config, gate = self.config, {"gate": partial(Gate, replace(options, epsilon=1e-5))}
        method = METHODS[config.decoder_method]
        attention = {"method": method, "offset_scale": config.decoder_offset_scale, "use_projections": False}
        return partial(DecoderLayer, config, config.decoder_activation_function, options, attention, **gate | further)
