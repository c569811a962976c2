"""RT-DETR and RT-DETRv2: Zhao et al., arXiv:2304.08069, and Lv et al., arXiv:2407.17140."""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype

from examples.resnet.model import PLAIN, ResNet

from .config import RTDetrConfig
from .decoder import Decoder, Detections, Outputs, Predictions, split
from .denoising import Denoising
from .hybrid_encoder import ConvNorm, CSPRepLayer, HybridEncoder
from .layers import Head, LayerOptions, box_head, class_head
from .positions import Pyramid
from .proposals import candidates, choose, projection

COARSEST_STRIDE = 32
METHODS = {"default": "bilinear", "discrete": "discrete"}


class RTDetr(nn.Module):
    """Images [batch, height, width, 3], sides divisible by 32, to `Outputs`.

    denoising: queries that are trained beside the others. train: whether the batch normalisations use the statistics of
    the batch, and update the mutable "batch_stats", and dropout is on. Those of the backbone do only if the config says
    so. dtype: of products and convolutions; positions, boxes and logits have float32.
    """

    config: RTDetrConfig
    dtype: Dtype | None = None

    keeps_equal: ClassVar = False  # as of `pyramid`

    @nn.compact
    def __call__(self, images: jax.Array, *, denoising: Denoising | None = None, train: bool = False) -> Outputs:
        config = self.config
        options = LayerOptions.of(config, train, self.dtype, config.layer_norm_eps)
        if any(side % COARSEST_STRIDE for side in images.shape[1:3]):
            raise ValueError(f"images must have sides divisible by {COARSEST_STRIDE}, got shape {images.shape}")
        maps = self._encoder(options)(self._maps(images, options))
        memory = pyramid(config, options, maps, self.keeps_equal)
        proposed, queries, reference = choose_queries(config, memory)
        queries, reference, hidden = add_denoising(config, queries, reference, denoising)
        position = Head(*self._position, name="query_pos_head")
        classes = [class_head(config.num_labels, f"class_embed_{index}") for index in range(config.decoder_layers)]
        inputs = queries.astype(memory.features.dtype), reference, position, memory, classes
        trains = train or denoising is not None or self.is_initializing()
        found = self._decoded(options, inputs, hidden, trains)
        denoised, found = split(found, 0 if denoising is None else denoising.classes.shape[1])
        return Outputs(found, proposed, denoised)

    @property
    def _position(self) -> tuple[Any, ...]:
        """The arguments of the `Head` that embeds positions."""
        return ((2 * self.config.d_model, self.config.d_model),)

    def _maps(self, images: jax.Array, options: LayerOptions, epsilon: float = 1e-5) -> list[jax.Array]:
        """What the encoder takes. epsilon: of the normalisations after the backbone."""
        maps = self._backbone()(images, use_running_average=not options.train)
        project = partial(ConvNorm, self.config.encoder_hidden_dim, 1, options, epsilon=epsilon)
        return [project(name=f"encoder_input_proj_{index}")(x) for index, x in enumerate(maps)]

    def _backbone(self) -> nn.Module:
        frozen = self.config.freeze_backbone_batch_norms
        return ResNet(self.config.backbone, PLAIN, frozen=frozen, dtype=self.dtype, name="backbone")

    def _encoder(self, options: LayerOptions) -> nn.Module:
        config, activation = self.config, self.config.activation_function
        halve = partial(ConvNorm, config.encoder_hidden_dim, 3, options, 2, activation, config.batch_norm_eps)
        block = partial(CSPRepLayer, config, options, config.encoder_hidden_dim)
        return HybridEncoder(config, options, block, halve, activation, name="encoder")

    def _decoded(self, options: LayerOptions, inputs: Any, hidden: jax.Array | None, trains: bool) -> Predictions:
        """What the decoder predicts. inputs: its first arguments; trains: whether all layers are needed."""
        config = self.config
        heads = [box_head(config.d_model, f"bbox_embed_{index}") for index in range(config.decoder_layers)]
        *inputs, memory, classes = inputs
        memory = memory._replace(ratios=memory.ratios[:, :1])
        attention = {"method": METHODS[config.decoder_method], "offset_scale": config.decoder_offset_scale}
        form = {"refine": True, "looks_forward_twice": True, "attention_options": attention}
        decoder = Decoder(config, config.decoder_activation_function, options, **form, name="decoder")
        return decoder(*inputs, memory, classes, heads, hidden)


def pyramid(
    config: RTDetrConfig, options: LayerOptions, maps: Sequence[jax.Array], keeps_equal: bool = False
) -> Pyramid:
    """The encoded maps and further halvings of the last one; makes layers of the calling module.

    keeps_equal: whether maps that have the decoder's number of channels already are taken as they are.
    """
    levels = []
    for index in range(config.num_feature_levels):
        x, size, stride = (maps[index], 1, 1) if index < len(maps) else (maps[-1], 3, 2)
        if keeps_equal and x.shape[-1] == config.d_model:
            levels.append(x)
            continue
        conv = ConvNorm(
            config.d_model, size, options, stride, epsilon=config.batch_norm_eps, name=f"decoder_input_proj_{index}"
        )
        levels.append(conv(x))
    return Pyramid.of(levels)


def choose_queries(config: RTDetrConfig, memory: Pyramid) -> tuple[Detections, jax.Array, jax.Array]:
    """The best detections of the first stage, and as queries without gradient their features and boxes; makes layers of
    the calling module."""
    features, boxes = candidates(memory)
    project = projection(features, config.layer_norm_eps)
    classify = class_head(config.num_labels, "enc_score_head")
    queries, logits, boxes = choose(config.num_queries, project, classify, features, boxes)
    boxes = jax.nn.sigmoid(box_head(config.d_model, "enc_bbox_head")(queries) + boxes)
    return Detections(logits, boxes), *jax.lax.stop_gradient((queries, boxes))


def add_denoising(
    config: RTDetrConfig, queries: jax.Array, boxes: jax.Array, denoising: Denoising | None
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """The queries and their boxes after those of denoising, and which queries do not see each other; makes the
    embedding of classes in the calling module."""
    if not config.num_denoising:
        return queries, boxes, None
    embed = nn.Embed(
        config.num_labels + 1, config.d_model, embedding_init=_zero_for_padding, name="denoising_class_embed"
    )
    if denoising is None:
        embed(jnp.zeros(1, jnp.int32))  # makes the parameter
        return queries, boxes, None
    noisy = embed(denoising.classes)
    is_padding = denoising.classes == config.num_labels
    noisy = jnp.where(is_padding[..., None], jax.lax.stop_gradient(noisy), noisy)
    queries = jnp.concatenate([noisy.astype(queries.dtype), queries], 1)
    hidden = denoising.hidden[: queries.shape[1], : queries.shape[1]]  # small images have fewer queries
    return queries, jnp.concatenate([jax.nn.sigmoid(denoising.boxes), boxes], 1), hidden


def _zero_for_padding(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Normally distributed rows, of which the last, that of padding, is zero."""
    return jax.random.normal(key, shape, dtype).at[-1].set(0)
