"""LW-DETR (Chen et al., arXiv:2406.03459) and RF-DETR (Robinson et al., arXiv:2511.09554) for detection."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype

from .config import LwDetrConfig
from .decoder import Decoder, Detections, Outputs, shift
from .layers import Head, LayerOptions, box_head, class_head
from .positions import Pyramid, sines_of_boxes
from .projector import Projector
from .proposals import anchors, choose, projection
from .vit import ViT


class LwDetr(nn.Module):
    """Images [batch, height, width, 3], sides divisible by the config's `stride`, to `Outputs`.

    train: whether all of the config's `group_detr` groups of queries are predicted, one after another, in place of the
    first one; batch normalisations use the statistics of the batch, and update the mutable "batch_stats"; and dropout
    is on. dtype: of products and convolutions; positions, boxes and logits have float32. A group has as many queries as
    there are pixels, if these are fewer than the config's `num_queries`.
    """

    config: LwDetrConfig
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> Outputs:
        config = self.config
        options = LayerOptions.of(config, train, self.dtype)
        if any(side % config.stride for side in images.shape[1:3]):
            raise ValueError(f"images must have sides divisible by {config.stride}, got shape {images.shape}")
        of_backbone = LayerOptions(dtype=self.dtype, epsilon=config.backbone.layer_norm_eps)
        maps = ViT(config.backbone, of_backbone, name="backbone")(images)
        memory = Pyramid.of(Projector(config, options, name="projector")(maps))
        groups = config.group_detr if train or self.is_initializing() else 1
        proposed = self._propose(memory, groups)
        queries, learned = self._learned_queries(groups, proposed.boxes.shape)
        reference = shift(jax.lax.stop_gradient(proposed.boxes), learned)
        head = Head((config.d_model,) * 2, name="ref_point_head")

        def position(boxes):
            rows_first = jnp.concatenate([boxes[..., 1::-1], boxes[..., 2:]], -1)
            return head(sines_of_boxes(rows_first, config.d_model // 2))

        heads = [class_head(config.num_labels, "class_embed")], [box_head(config.d_model, "bbox_embed")]
        attention = {"num_heads": config.decoder_cross_attention_heads}
        form = {"groups": groups, "moves": shift, "normalises": True, "attention_options": attention}
        decoder = Decoder(config, config.decoder_activation_function, options, False, **form, name="decoder")
        memory = memory._replace(ratios=memory.ratios[:, :1])
        return Outputs(decoder(queries.astype(memory.features.dtype), reference, position, memory, *heads), proposed)

    def _propose(self, memory: Pyramid, groups: int) -> Detections:
        """The best detections of each group in the first stage, [batch, groups * queries, ...]."""
        config, found = self.config, []
        boxes, inside = anchors(memory.shapes, memory.ratios)
        known, boxes = jnp.where(inside, memory.features, 0), jnp.where(inside, boxes, 0)
        for index in range(groups):
            project = projection(known, end=f"_{index}")
            classify = class_head(config.num_labels, f"enc_out_class_embed_{index}")
            features, logits, chosen = choose(config.num_queries, project, classify, known, boxes)
            change = box_head(config.d_model, f"enc_out_bbox_embed_{index}")(features)
            found.append(Detections(logits, shift(chosen, change)))
        return jax.tree.map(lambda *parts: jnp.concatenate(parts, 1), *found)

    def _learned_queries(self, groups: int, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
        """The features [batch, queries, channels] of queries, and the changes [batch, queries, 4] of their boxes, for
        proposals of this shape."""
        config, count = self.config, shape[1] // groups
        features = {"query_feat": (config.d_model, 1.0), "reference_point_embed": (4, 0.0)}
        found = []
        for name, (width, deviation) in features.items():
            initializer = nn.initializers.normal(deviation)
            embed = nn.Embed(config.num_queries * config.group_detr, width, embedding_init=initializer, name=name)
            table = embed(jnp.arange(groups * config.num_queries)).reshape(groups, config.num_queries, width)
            rows = table[:, :count].reshape(-1, width)
            found.append(jnp.broadcast_to(rows, (shape[0], *rows.shape)))
        return found[0], found[1]
