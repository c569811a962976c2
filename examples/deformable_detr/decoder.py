"""The decoder of both models: queries attend to each other and to the feature pyramid, and move their boxes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from .layers import FeedForward, SelfAttention, layer_norm
from .positions import Shapes

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
    """Self attention, deformable attention and a feed-forward network, each added to its input and normalised.

    cross_attention: makes the `MultiScaleDeformableAttention`, given its name.
    """

    heads: int
    ffn_features: int
    activation: str
    cross_attention: Callable[..., nn.Module]
    epsilon: float = 1e-5

    @nn.compact
    def __call__(
        self,
        queries: jax.Array,
        position: jax.Array,
        reference: jax.Array,
        memory: jax.Array,
        shapes: Shapes,
        mask: jax.Array | None,
    ) -> jax.Array:
        attended = SelfAttention(self.heads, name="self_attn")(queries, position)
        queries = layer_norm("self_attn_layer_norm", self.epsilon)(queries + attended)
        attended = self.cross_attention(name="encoder_attn")(
            queries + position, reference, memory, spatial_shapes=shapes, padding_mask=mask
        )
        queries = layer_norm("encoder_attn_layer_norm", self.epsilon)(queries + attended)
        y = FeedForward(self.ffn_features, self.activation, name="mlp")(queries)
        return layer_norm("final_layer_norm", self.epsilon)(queries + y)


class Decoder(nn.Module):
    """Queries and their reference points or boxes to detections.

    layer: makes a `DecoderLayer`, given its name.
    refine: whether the boxes of each layer are the references of the next one, which get no gradient.
    """

    layers: int
    layer: Callable[..., DecoderLayer]
    refine: bool

    @nn.compact
    def __call__(
        self,
        queries: jax.Array,
        reference: jax.Array,
        position: Callable[[jax.Array], jax.Array],
        memory: jax.Array,
        shapes: Shapes,
        class_heads: Sequence[nn.Module],
        box_heads: Sequence[nn.Module],
        ratios: jax.Array,
        mask: jax.Array | None = None,
    ) -> Detections:
        """Runs all layers.

        queries [batch, queries, channels]; reference [batch, queries, 2 or 4] in the valid part of the images;
        position: the embedding of a reference; memory [batch, pixels, channels] is the pyramid of the given shapes, of
        which the mask [batch, pixels] and ratios [batch, levels, 2] are valid; a head per layer, or one for all.
        """
        found = []
        for index in range(self.layers):
            scale = jnp.tile(ratios, reference.shape[-1] // 2)
            located = reference[:, :, None] * scale[:, None]
            layer = self.layer(name=f"layers_{index}")
            queries = layer(queries, position(reference), located, memory, shapes, mask)
            logits, change = (heads[min(index, len(heads) - 1)](queries) for heads in (class_heads, box_heads))
            boxes = move(reference, change)
            found.append(Detections(logits, boxes))
            if self.refine:
                reference = jax.lax.stop_gradient(boxes)
        return jax.tree.map(lambda *layers: jnp.stack(layers), *found)
