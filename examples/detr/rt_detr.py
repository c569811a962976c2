"""RT-DETR and RT-DETRv2: Zhao et al., arXiv:2304.08069, and Lv et al., arXiv:2407.17140."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.resnet.model import PLAIN, ResNet

from .config import RTDetrConfig
from .decoder import Decoder, Detections, Outputs
from .hybrid_encoder import ConvNorm, HybridEncoder
from .layers import Head, box_head, class_head
from .positions import Pyramid
from .proposals import best, propose

COARSEST_STRIDE = 32
METHODS = {"default": "bilinear", "discrete": "discrete"}


class RTDetr(nn.Module):
    """Images [batch, height, width, 3], sides divisible by 32, to `Outputs`; it has no dropout and no denoising.

    use_running_average: False if the batch normalisations of the encoder, but not of the backbone, are to be trained.
    """

    config: RTDetrConfig

    @nn.compact
    def __call__(self, images: jax.Array, *, use_running_average: bool = True) -> Outputs:
        config = self.config
        if any(side % COARSEST_STRIDE for side in images.shape[1:3]):
            raise ValueError(f"images must have sides divisible by {COARSEST_STRIDE}, got shape {images.shape}")
        maps = [
            ConvNorm(config.encoder_hidden_dim, 1, name=f"encoder_input_proj_{index}")(x, use_running_average)
            for index, x in enumerate(ResNet(config.backbone, PLAIN, frozen=True, name="backbone")(images))
        ]
        maps = HybridEncoder(config, name="encoder")(maps, use_running_average)
        levels = []
        for index in range(config.num_feature_levels):
            x, size, stride = (maps[index], 1, 1) if index < len(maps) else (maps[-1], 3, 2)
            conv = partial(ConvNorm, config.d_model, size, stride, epsilon=config.batch_norm_eps)
            levels.append(conv(name=f"decoder_input_proj_{index}")(x, use_running_average))
        shapes = tuple(level.shape[1:3] for level in levels)
        features = jnp.concatenate([level.reshape(len(level), -1, config.d_model) for level in levels], 1)
        memory = Pyramid(features, shapes, None, jnp.ones((1, len(levels), 2), features.dtype))
        proposed, queries = self._propose(memory)
        indices = range(config.decoder_layers)
        options = {"method": METHODS[config.decoder_method], "offset_scale": config.decoder_offset_scale}
        settings = config, config.decoder_activation_function, True, config.layer_norm_eps, options
        found = Decoder(*settings, name="decoder")(
            queries,
            jax.lax.stop_gradient(proposed.boxes),
            Head((2 * config.d_model, config.d_model), name="query_pos_head"),
            memory._replace(ratios=memory.ratios[:, :1]),
            [class_head(config.num_labels, f"class_embed_{index}") for index in indices],
            [box_head(config.d_model, f"bbox_embed_{index}") for index in indices],
        )
        return Outputs(found, proposed)

    def _propose(self, memory: Pyramid) -> tuple[Detections, jax.Array]:
        """The best detections of the first stage, and the features of their pixels, as queries without gradient."""
        config = self.config
        heads = class_head(config.num_labels, "enc_score_head"), box_head(config.d_model, "enc_bbox_head")
        features, (logits, boxes) = propose(memory, *heads, config.layer_norm_eps)
        logits, boxes, queries = best(logits.max(-1), config.num_queries, logits, boxes, features)
        return Detections(logits, boxes), jax.lax.stop_gradient(queries)
