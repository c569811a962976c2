"""The decoder of both models: queries attend to each other and to the feature pyramid, and move their boxes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict

from jax_dcn.linen import MultiScaleDeformableAttention

from .config import DeformableDetrConfig, RTDetrConfig
from .layers import FeedForward, SelfAttention, layer_norm
from .positions import Pyramid

EPSILON = 1e-5


class Detections(NamedTuple):
    """Objects: logits [..., classes] of their classes, and boxes [..., 4].

    A box is (centre x, centre y, width, height) in fractions of the image.
    """

    logits: jax.Array
    boxes: jax.Array


class Outputs(NamedTuple):
    """What a model predicts.

    layers: by each decoder layer, [layers, batch, queries, ...]; the last one is the result, the others are for losses.
    proposals: by the first of two stages, [batch, proposals, ...]; also for losses.
    """

    layers: Detections
    proposals: Detections | None

    @property
    def logits(self) -> jax.Array:
        """The logits of the result, [batch, queries, classes]."""
        return self.layers.logits[-1]

    @property
    def boxes(self) -> jax.Array:
        """The boxes of the result, [batch, queries, 4]."""
        return self.layers.boxes[-1]


def inverse_sigmoid(x: jax.Array) -> jax.Array:
    """The logit of x, whose distances from 0 and from 1 are at least `EPSILON`."""
    return jnp.log(jnp.maximum(x, EPSILON) / jnp.maximum(1 - x, EPSILON))


def move(reference: jax.Array, change: jax.Array) -> jax.Array:
    """Boxes [..., 4] at reference points [..., 2] or boxes [..., 4], changed by `change` [..., 4] as logits."""
    known = reference.shape[-1]
    moved = inverse_sigmoid(reference) + change[..., :known]
    return jax.nn.sigmoid(jnp.concatenate([moved, change[..., known:]], -1))


class DecoderLayer(nn.Module):
    """Self attention, deformable attention and a feed-forward network, each added to its input and normalised."""

    config: DeformableDetrConfig | RTDetrConfig
    activation: str
    epsilon: float
    attention_options: Mapping[str, Any]

    @nn.compact
    def __call__(self, queries: jax.Array, position: jax.Array, reference: jax.Array, memory: Pyramid) -> jax.Array:
        config = self.config
        attended = SelfAttention(config.decoder_attention_heads, name="self_attn")(queries, position)
        queries = layer_norm("self_attn_layer_norm", self.epsilon)(queries + attended)
        cross_attention = MultiScaleDeformableAttention(
            config.d_model,
            num_heads=config.decoder_attention_heads,
            num_levels=config.num_feature_levels,
            num_points=config.decoder_n_points,
            **self.attention_options,
            name="encoder_attn",
        )
        inputs = queries + position, reference, memory.features
        attended = cross_attention(*inputs, spatial_shapes=memory.shapes, padding_mask=memory.mask)
        queries = layer_norm("encoder_attn_layer_norm", self.epsilon)(queries + attended)
        y = FeedForward(config.decoder_ffn_dim, self.activation, name="mlp")(queries)
        return layer_norm("final_layer_norm", self.epsilon)(queries + y)


class Decoder(nn.Module):
    """Queries and their reference points or boxes to detections.

    activation: of the feed-forward networks.
    refine: whether the boxes of each layer are the references of the next one, which get no gradient.
    epsilon: of the layer normalisations.
    attention_options: further arguments of `MultiScaleDeformableAttention`.
    """

    config: DeformableDetrConfig | RTDetrConfig
    activation: str
    refine: bool
    epsilon: float = 1e-5
    attention_options: Mapping[str, Any] = FrozenDict()

    @nn.compact
    def __call__(
        self,
        queries: jax.Array,
        reference: jax.Array,
        position: Callable[[jax.Array], jax.Array],
        memory: Pyramid,
        class_heads: Sequence[nn.Module],
        box_heads: Sequence[nn.Module],
    ) -> Detections:
        """Runs all layers.

        queries: [batch, queries, channels]; memory: the encoded pyramid.
        reference: [batch, queries, 2 or 4], points or boxes in fractions of the valid part of the image.
        position: from a reference to the position embedding of its query.
        class_heads, box_heads: one for each layer, or one for all of them.
        """
        found = []
        for index in range(self.config.decoder_layers):
            scale = jnp.tile(memory.ratios, reference.shape[-1] // 2)
            located = reference[:, :, None] * scale[:, None]
            layer = DecoderLayer(
                self.config, self.activation, self.epsilon, self.attention_options, name=f"layers_{index}"
            )
            queries = layer(queries, position(reference), located, memory)
            logits, change = (heads[min(index, len(heads) - 1)](queries) for heads in (class_heads, box_heads))
            boxes = move(reference, change)
            found.append(Detections(logits, boxes))
            if self.refine:
                reference = jax.lax.stop_gradient(boxes)
        return jax.tree.map(lambda *layers: jnp.stack(layers), *found)
