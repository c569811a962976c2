"""The decoder of Deformable DETR and RT-DETR: queries attend to each other and to the pyramid, and move their boxes.

The layer is also that of D-FINE and DEIMv2.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict

from jax_dcn.linen import MultiScaleDeformableAttention

from .attention import SelfAttention
from .config import DeformableDetrConfig, LwDetrConfig, RTDetrConfig
from .layers import FeedForward, LayerOptions
from .positions import Pyramid

EPSILON = 1e-5


class Detections(NamedTuple):
    """Objects: logits [..., classes] of their classes, and boxes [..., 4].

    A box is (centre x, centre y, width, height) in fractions of the image.
    """

    logits: jax.Array
    boxes: jax.Array


class Predictions(NamedTuple):
    """What the decoder predicts for one set of queries.

    logits, boxes: of each layer, [layers, batch, queries, ...].
    Of D-FINE also: first: detections of the plain head on the first layer; corners: [layers, batch, queries, 4,
    bins + 1], logits of the distances of the sides; reference: [batch, queries, 4], the boxes that these refer to.
    """

    logits: jax.Array
    boxes: jax.Array
    first: Detections | None = None
    corners: jax.Array | None = None
    reference: jax.Array | None = None


class Outputs(NamedTuple):
    """What a model predicts.

    layers: for the ordinary queries; the last layer is the result, the others are for losses.
    proposals: by the first of two stages, [batch, proposals, ...]; for losses.
    denoising: for the denoising queries; for losses.
    """

    layers: Predictions
    proposals: Detections | None
    denoising: Predictions | None = None

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


def shift(boxes: jax.Array, change: jax.Array) -> jax.Array:
    """Boxes [..., 4], changed by `change` [..., 4] in units of their sizes, and in logarithms of sizes."""
    centre, size = jnp.split(boxes, 2, -1)
    return jnp.concatenate([centre + change[..., :2] * size, jnp.exp(change[..., 2:]) * size], -1)


class DecoderLayer(nn.Module):
    """Self attention, deformable attention and a feed-forward network, each added to its input and normalised.

    attention_options: further arguments of `MultiScaleDeformableAttention`. gate: makes the layer, given its name, that
    merges the result of the deformable attention with its input, in place of a normalised sum. groups: into how many
    groups the queries are divided, each of which attends only to itself. feed_forward: makes the network, given its
    name, by default a `FeedForward`.
    """

    config: DeformableDetrConfig | RTDetrConfig | LwDetrConfig
    activation: str
    options: LayerOptions
    attention_options: Mapping[str, Any]
    gate: Callable[..., nn.Module] | None = None
    groups: int = 1
    feed_forward: Callable[..., nn.Module] | None = None

    @nn.compact
    def __call__(
        self,
        queries: jax.Array,
        position: jax.Array,
        reference: jax.Array,
        memory: Pyramid,
        hidden: jax.Array | None = None,
    ) -> jax.Array:
        config, options = self.config, self.options
        position = position.astype(queries.dtype)
        attention = SelfAttention(config.decoder_attention_heads, options, name="self_attn")
        grouped = [queries, position]
        if self.groups > 1:
            grouped = [x.reshape(x.shape[0], self.groups, -1, x.shape[-1]) for x in grouped]
        attended = attention(*grouped, hidden).reshape(queries.shape)
        queries = options.norm("self_attn_layer_norm")(queries + options.drop(attended, options.dropout))
        cross_attention = MultiScaleDeformableAttention(
            config.d_model,
            **{"num_heads": config.decoder_attention_heads, **self.attention_options},
            num_levels=config.num_feature_levels,
            num_points=config.decoder_n_points,
            dtype=options.dtype,
            name="encoder_attn",
        )
        inputs = queries + position, reference, memory.features
        options_of_call = {"spatial_shapes": memory.shapes, "padding_mask": memory.mask, "return_sampling": True}
        attended, *sampling = cross_attention(*inputs, **options_of_call)
        self.sow("intermediates", "sampling", tuple(sampling))  # for pictures
        attended = options.drop(attended, options.dropout)
        if self.gate:
            queries = self.gate(name="gateway")(queries, attended)
        else:
            queries = options.norm("encoder_attn_layer_norm")(queries + attended)
        usual = partial(FeedForward, config.decoder_ffn_dim, self.activation, options)
        y = (self.feed_forward or usual)(name="mlp")(queries)
        return options.norm("final_layer_norm")(queries + options.drop(y, options.dropout))


class Decoder(nn.Module):
    """Queries and their reference points or boxes to predictions.

    activation: of the feed-forward networks.
    refine: whether the boxes of each layer are the references of the next one, which get no gradient.
    looks_forward_twice: whether the loss of a layer also trains the box of the layer before, as in DINO (arXiv
    2203.03605) and RT-DETR.
    attention_options: further arguments of `MultiScaleDeformableAttention`.
    groups: into how many groups the queries are divided, each of which attends only to itself.
    moves: how a predicted change moves a reference.
    normalises: whether predictions are made from normalised features.
    """

    config: DeformableDetrConfig | RTDetrConfig | LwDetrConfig
    activation: str
    options: LayerOptions
    refine: bool
    looks_forward_twice: bool = False
    attention_options: Mapping[str, Any] = FrozenDict()
    groups: int = 1
    moves: Callable[[jax.Array, jax.Array], jax.Array] = move
    normalises: bool = False

    @nn.compact
    def __call__(
        self,
        queries: jax.Array,
        reference: jax.Array,
        position: Callable[[jax.Array], jax.Array],
        memory: Pyramid,
        class_heads: Sequence[nn.Module],
        box_heads: Sequence[nn.Module],
        hidden: jax.Array | None = None,
    ) -> Predictions:
        """Runs all layers.

        queries: [batch, queries, channels]; memory: the encoded pyramid.
        reference: [batch, queries, 2 or 4], points or boxes in fractions of the valid part of the image.
        position: from a reference to the position embedding of its query.
        class_heads, box_heads: one for each layer, or one for all of them.
        hidden: bool [queries, queries], which queries do not see each other.
        """
        found, start = [], reference
        norm = self.options.norm("layernorm") if self.normalises else lambda queries: queries
        options = {"attention_options": self.attention_options, "groups": self.groups}
        for index in range(self.config.decoder_layers):
            scale = jnp.tile(memory.ratios, reference.shape[-1] // 2)
            located = reference[:, :, None] * scale[:, None]
            layer = DecoderLayer(self.config, self.activation, self.options, **options, name=f"layers_{index}")
            queries = layer(queries, position(reference), located, memory, hidden)
            wide = norm(queries).astype(reference.dtype)
            logits, change = (heads[min(index, len(heads) - 1)](wide) for heads in (class_heads, box_heads))
            boxes = self.moves(reference, change)
            found.append(Detections(logits, self.moves(start, change) if self.looks_forward_twice else boxes))
            if self.refine:
                start, reference = boxes, jax.lax.stop_gradient(boxes)
        return Predictions(*jax.tree.map(lambda *layers: jnp.stack(layers), *found))


def split(predictions: Predictions, count: int) -> tuple[Predictions | None, Predictions]:
    """The predictions for the first `count` queries, None if it is 0, and those for the others."""

    def part(where: slice) -> Predictions:
        return jax.tree.map(lambda leaf: leaf[:, :, where], predictions._replace(first=None, reference=None))._replace(
            first=jax.tree.map(lambda leaf: leaf[:, where], predictions.first),
            reference=jax.tree.map(lambda leaf: leaf[:, where], predictions.reference),
        )

    return part(slice(count)) if count else None, part(slice(count, None))
