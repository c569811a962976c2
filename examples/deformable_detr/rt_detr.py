"""RT-DETR and RT-DETRv2: Zhao et al., arXiv:2304.08069, and Lv et al., arXiv:2407.17140."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from jax_dcn.linen import MultiScaleDeformableAttention

from .backbone import ResNet
from .config import RTDetrConfig
from .decoder import Decoder, DecoderLayer, Detections, Outputs
from .hybrid_encoder import ConvNorm, HybridEncoder
from .layers import Head, box_head, class_head, layer_norm
from .proposals import best, proposals

METHODS = {"default": "bilinear", "discrete": "discrete"}


class RTDetr(nn.Module):
    """Images [batch, height, width, 3], sides divisible by 32, to `Outputs`; it has no dropout and no denoising.

    use_running_average: False if the batch normalisations of the encoder, but not of the backbone, are to be trained.
    """

    config: RTDetrConfig

    @nn.compact
    def __call__(self, images: jax.Array, *, use_running_average: bool = True) -> Outputs:
        config = self.config
        maps = [
            ConvNorm(config.encoder_hidden_dim, 1, name=f"encoder_input_proj_{index}")(x, use_running_average)
            for index, x in enumerate(ResNet(config.backbone, name="backbone")(images))
        ]
        maps = HybridEncoder(config, name="encoder")(maps, use_running_average)
        levels = []
        for index in range(config.num_feature_levels):
            x, size, stride = (maps[index], 1, 1) if index < len(maps) else (maps[-1], 3, 2)
            conv = partial(ConvNorm, config.d_model, size, stride, epsilon=config.batch_norm_eps)
            levels.append(conv(name=f"decoder_input_proj_{index}")(x, use_running_average))
        shapes = tuple(level.shape[1:3] for level in levels)
        memory = jnp.concatenate([level.reshape(len(level), -1, config.d_model) for level in levels], 1)
        ratios = jnp.ones((1, len(levels), 2), memory.dtype)
        proposed, queries = self._propose(memory, shapes, ratios)
        attention = partial(
            MultiScaleDeformableAttention,
            config.d_model,
            num_heads=config.decoder_attention_heads,
            num_levels=config.num_feature_levels,
            num_points=config.decoder_n_points,
            method=METHODS[config.decoder_method],
            offset_scale=config.decoder_offset_scale,
        )
        layer = partial(
            DecoderLayer,
            config.decoder_attention_heads,
            config.decoder_ffn_dim,
            config.decoder_activation_function,
            attention,
            config.layer_norm_eps,
        )
        indices = range(config.decoder_layers)
        found = Decoder(config.decoder_layers, layer, refine=True, name="decoder")(
            queries,
            jax.lax.stop_gradient(proposed.boxes),
            Head((2 * config.d_model, config.d_model), name="query_pos_head"),
            memory,
            shapes,
            [class_head(config.num_labels, f"class_embed_{index}") for index in indices],
            [box_head(config.d_model, f"bbox_embed_{index}") for index in indices],
            ratios[:, :1],
        )
        return Outputs(found, proposed)

    def _propose(self, memory, shapes, ratios):
        """The best detections of the first stage, and the features of their pixels, as queries without gradient."""
        config = self.config
        boxes, inside = proposals(shapes, ratios)
        projected = nn.Dense(config.d_model, name="enc_output")(jnp.where(inside, memory, 0))
        features = layer_norm("enc_output_norm", config.layer_norm_eps)(projected)
        logits = class_head(config.num_labels, "enc_score_head")(features)
        boxes = jax.nn.sigmoid(box_head(config.d_model, "enc_bbox_head")(features) + boxes)
        logits, boxes, queries = best(logits.max(-1), config.num_queries, logits, boxes, features)
        return Detections(logits, boxes), jax.lax.stop_gradient(queries)
