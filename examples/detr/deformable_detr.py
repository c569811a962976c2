"""Deformable DETR: Zhu et al., Deformable Transformers for End-to-End Object Detection, arXiv:2010.04159."""

from collections.abc import Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype

from examples.library.layers import Dense, square
from examples.resnet.model import PLAIN, ResNet
from jax_dcn.linen import MultiScaleDeformableAttention

from .config import DeformableDetrConfig
from .decoder import Decoder, Detections, Outputs
from .layers import EncoderLayer, LayerOptions, box_head, class_head
from .positions import Pyramid, of_pixels, pixel_centres, resize_mask, sines_of_boxes, sines_of_pixels, valid_ratios
from .proposals import best, candidates, projection

GROUPS = 32


class ConvGroupNorm(nn.Module):
    """A convolution and a group normalisation."""

    features: int
    size: int
    stride: int
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = square(self.features, self.size, self.stride, dtype=self.dtype, name="conv")(x)
        return nn.GroupNorm(GROUPS, epsilon=1e-5, use_fast_variance=False, dtype=self.dtype, name="norm")(x)


class Encoder(nn.Module):
    """A pyramid, the embedding [batch, pixels, channels] of its pixels, and that of levels, to the encoded pyramid."""

    config: DeformableDetrConfig
    options: LayerOptions

    @nn.compact
    def __call__(self, pyramid: Pyramid, sines: jax.Array, levels: jax.Array) -> Pyramid:
        config = self.config
        centres = pixel_centres(pyramid.shapes, pyramid.ratios)
        reference = centres[:, :, None] * pyramid.ratios[:, None]
        attention = partial(
            MultiScaleDeformableAttention,
            config.d_model,
            num_heads=config.encoder_attention_heads,
            num_levels=config.num_feature_levels,
            num_points=config.encoder_n_points,
            dtype=self.options.dtype,
        )
        keywords = {"spatial_shapes": pyramid.shapes, "padding_mask": pyramid.mask}
        x = pyramid.features
        for index in range(config.encoder_layers):
            ffn = config.encoder_ffn_dim, config.activation_function
            layer = EncoderLayer(attention, *ffn, self.options, name=f"layers_{index}")
            # Made anew, so that the gradients of levels are summed in each layer, and not kept until the last one.
            position = sines + of_pixels(levels, pyramid.shapes)
            x = layer(x, x + position.astype(x.dtype), reference, x, **keywords)
        return pyramid._replace(features=x)


class DeformableDetr(nn.Module):
    """Images [batch, height, width, 3] to `Outputs`.

    mask: [batch, height, width], nonzero where an image is not padding; None if nothing is. train: whether dropout is
    on, which needs a key "dropout". dtype: of products and convolutions; positions, boxes and logits have float32.
    """

    config: DeformableDetrConfig
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, images: jax.Array, mask: jax.Array | None = None, *, train: bool = False) -> Outputs:
        config = self.config
        options = LayerOptions.of(config, train, self.dtype)
        mask = jnp.ones(images.shape[:3], bool) if mask is None else mask.astype(bool)
        maps = ResNet(config.backbone, PLAIN, frozen=True, dtype=self.dtype, name="backbone")(images)
        memory = Encoder(config, options, name="encoder")(*self._pyramid(maps, mask))
        heads = config.decoder_layers + config.two_stage if config.with_box_refine else 1
        class_heads = [class_head(config.num_labels, f"class_embed_{index}") for index in range(heads)]
        # Without a first stage, the first boxes have sizes of sigmoid(-2).
        first = [(0.0,) * 4 if config.two_stage or index else (0.0, 0.0, -2.0, -2.0) for index in range(heads)]
        box_heads = [box_head(config.d_model, f"bbox_embed_{index}", first[index]) for index in range(heads)]
        if config.two_stage:
            proposed, reference, embedding = self._propose(memory, class_heads[-1], box_heads[-1])
        else:
            proposed, reference, embedding = None, *self._learned_queries(images.shape[0])
        position, queries = jnp.split(embedding.astype(memory.features.dtype), 2, -1)
        found = Decoder(config, config.activation_function, options, config.with_box_refine, name="decoder")(
            queries, reference, lambda _: position, memory, class_heads, box_heads
        )
        return Outputs(found, proposed)

    def _pyramid(self, maps: Sequence[jax.Array], mask: jax.Array) -> tuple[Pyramid, jax.Array, jax.Array]:
        """The maps of the backbone and further halvings of the last one, as a pyramid of `d_model` channels; the
        embedding of its pixels; and that of its levels."""
        config = self.config
        levels = []
        for index in range(config.num_feature_levels):
            if index < len(maps):
                x, size, stride = maps[index], 1, 1
            else:
                x, size, stride = maps[-1] if index == len(maps) else levels[-1], 3, 2
            levels.append(ConvGroupNorm(config.d_model, size, stride, self.dtype, name=f"input_proj_{index}")(x))
        shapes = tuple(level.shape[1:3] for level in levels)
        masks = [resize_mask(mask, shape) for shape in shapes]
        embeddings = self.param("level_embed", nn.initializers.normal(1.0), (len(levels), config.d_model))
        wide = jnp.promote_types(levels[0].dtype, jnp.float32)
        sines = [sines_of_pixels(mask, config.d_model, wide) for mask in masks]
        features, of_pixel, mask = (
            jnp.concatenate([jax.lax.collapse(part, 1, 3) for part in parts], 1) for parts in (levels, sines, masks)
        )
        return Pyramid(features, shapes, mask, valid_ratios(masks, wide)), of_pixel, embeddings

    def _learned_queries(self, batch: int) -> tuple[jax.Array, jax.Array]:
        """Reference points [batch, queries, 2], and embeddings [batch, queries, 2 * channels]."""
        config = self.config
        embed = nn.Embed(config.num_queries, 2 * config.d_model, name="query_position_embeddings")
        embedding = embed(jnp.arange(config.num_queries))
        points = Dense(2, name="reference_points")(embedding[:, : config.d_model])
        reference = jax.nn.sigmoid(points)
        return tuple(jnp.broadcast_to(part, (batch, *part.shape)) for part in (reference, embedding))

    def _propose(
        self, memory: Pyramid, class_head: nn.Module, box_head: nn.Module
    ) -> tuple[Detections, jax.Array, jax.Array]:
        """The boxes that all pixels propose, the best of them [batch, queries, 4], and their embeddings."""
        config = self.config
        features, boxes = candidates(memory)
        features = projection(features)(features)
        proposed = Detections(class_head(features), jax.nn.sigmoid(box_head(features) + boxes))
        [reference] = best(proposed.logits[..., 0], config.two_stage_num_proposals, proposed.boxes)
        reference = jax.lax.stop_gradient(reference)
        embedding = Dense(2 * config.d_model, name="pos_trans")(sines_of_boxes(reference, config.d_model // 2))
        return proposed, reference, LayerOptions().norm("pos_trans_norm")(embedding)
