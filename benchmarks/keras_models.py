"""`python -m benchmarks.keras_models`: D-FINE of keras-hub, with its own sampling and with this package's operator.

It measures the time and the peak memory of inference and of a training step, and of the parts that sample. It needs
the packages keras and keras-hub.
"""

import os
import statistics
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.baselines import Call
from benchmarks.measurements import timing
from benchmarks.reports.formatting import digits, markdown, paragraph
from benchmarks.reports.report import facts, parser, write_page
from benchmarks.support import memory
from benchmarks.support.machine import installed, load, machine
from examples.keras_d_fine import use_kernels

NAMES = ("keras-hub", "jax_dcn")
QUERIES, CLASSES, CHANNELS, LEVELS = 300, 80, 256, 3
MEMORY_CALLS = 3
ABOUT = (
    "D-FINE-S, 10.3 million parameters with random values, {size} x {size} pixels, 300 queries, float32, Keras on JAX. "
    "The same model and weights are compiled twice: as keras-hub has it, and after `use_kernels` of "
    "`examples/keras_d_fine.py`. A training step is the forward, keras-hub's losses with 3 objects per image and no "
    "denoising, the gradients, and AdamW. The sampling is that of one of the three decoder layers. Gradients of the "
    "decoder and of the sampling are those of the sum of the squares of the results, in all parameters and inputs."
)
ABOUT_NUMBERS = (
    "Milliseconds: the median of {repeats} calls that take turns, with the smallest and the largest. MiB: how far a "
    f"call makes the process grow, results included, the median of {MEMORY_CALLS} calls. Difference: the largest one "
    "between the results, relative to the largest result; of a training step, that of the loss."
)


class Part(NamedTuple):
    """Functions by pass, which return what is compared and what is not, and the arguments of each."""

    functions: dict
    arguments: tuple


def detector(size):
    """D-FINE-S with random weights. keras-hub initialises some with zeros, with which all queries sample alike."""
    import keras
    import keras_hub

    keras.utils.set_random_seed(0)
    images = {"image_shape": (size, size, 3), "out_features": ["stage2", "stage3", "stage4"]}
    stages = [[16, 16, 64, 1, 3, 3], [64, 32, 256, 1, 3, 3], [256, 64, 512, 2, 3, 5], [512, 128, 1024, 1, 3, 5]]
    hgnet = keras_hub.models.HGNetV2Backbone(
        **{"depths": [1, 1, 2, 1], "hidden_sizes": [64, 256, 512, 1024], "stackwise_stage_filters": stages},
        **{"embedding_size": 16, "stem_channels": [3, 16, 16], "hidden_act": "relu"},
        **{"use_learnable_affine_block": True, "apply_downsample": [False, True, True, True]},
        **{"use_lightweight_conv_block": [False, False, True, True], **images},
    )
    body = keras_hub.models.DFineBackbone(
        **{"backbone": hgnet, "encoder_in_channels": [256, 512, 1024], "decoder_in_channels": [CHANNELS] * LEVELS},
        **{"encoder_hidden_dim": CHANNELS, "hidden_dim": CHANNELS, "num_labels": CLASSES, "num_queries": QUERIES},
        **{"num_denoising": 0, "learn_initial_query": False, "anchor_image_size": (size, size)},
        **{"feat_strides": [8, 16, 32], "num_feature_levels": LEVELS, "encode_proj_layers": [2]},
        **{"num_attention_heads": 8, "encoder_ffn_dim": 1024, "num_encoder_layers": 1, "hidden_expansion": 0.5},
        **{"depth_multiplier": 0.34, "eval_idx": -1, "num_decoder_layers": 3, "decoder_attention_heads": 8},
        **{"decoder_ffn_dim": 1024, "decoder_n_points": [3, 6, 3], "lqe_hidden_dim": 64, "num_lqe_layers": 2, **images},
    )
    random = np.random.default_rng(0)
    for weight in body.decoder.trainable_variables:
        if weight.path.endswith("kernel") and not np.any(weight):
            weight.assign(random.normal(scale=0.05, size=weight.shape))
    return keras_hub.models.DFineObjectDetector(body, num_classes=CLASSES, bounding_box_format="xyxy")


def whole_model(model, batch):
    import keras

    images = jax.random.uniform(jax.random.key(0), (batch, *model.backbone.image_shape), maxval=255)
    side = images.shape[1]
    boxes = side * jnp.tile(jnp.array([[0.1, 0.1, 0.3, 0.4], [0.2, 0.3, 0.9, 0.8], [0.5, 0, 0.7, 0.2]]), (batch, 1, 1))
    targets = {"boxes": boxes, "labels": jnp.tile(jnp.arange(3), (batch, 1))}
    optimizer = keras.optimizers.AdamW(1e-4)
    optimizer.build(model.trainable_variables)

    def inference(weights, rest, state, images):
        outputs, _ = model.stateless_call(weights, rest, images, training=False)
        return (outputs["logits"], outputs["pred_boxes"]), ()

    def training_step(weights, rest, state, images):
        def loss(weights):
            outputs, statistics = model.stateless_call(weights, rest, images, training=True)
            return model.compute_loss(images, targets, outputs, None), statistics

        (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        return value, (statistics, optimizer.stateless_apply(state, gradients, weights))

    arguments = (*variables(model), [variable.value for variable in optimizer.variables], images)
    return Part({"inference": inference, "training step": training_step}, arguments)


def decoder(model, batch):
    layer = model.backbone.decoder
    shapes = layer.spatial_shapes
    keys = jax.random.split(jax.random.key(1), 3)
    queries = jax.random.normal(keys[0], (batch, QUERIES, CHANNELS))
    pixels = jax.random.normal(keys[1], (batch, sum(h * w for h, w in shapes), CHANNELS))
    references = jax.random.normal(keys[2], (batch, QUERIES, 4))

    def forward(weights, queries, pixels, rest, references):
        inputs = (queries, pixels, references, jnp.array(shapes))
        return layer.stateless_call(weights, rest, *inputs, training=False)[0][1:4]  # scores and boxes of each layer

    weights, rest = variables(layer)
    return differentiated(forward, (weights, queries, pixels, rest, references))


def sampling(model, batch):
    layer = model.backbone.decoder.decoder_layers[0].encoder_attn
    shapes = layer.spatial_shapes
    sizes, points, heads = [h * w for h, w in shapes], sum(layer.num_points), layer.n_heads
    keys = jax.random.split(jax.random.key(2), 3)
    value = jax.random.normal(keys[0], (batch, sum(sizes), heads, CHANNELS // heads))
    locations = jax.random.uniform(keys[1], (batch, QUERIES, heads, points, 2))
    weights = jax.nn.softmax(jax.random.normal(keys[2], locations.shape[:-1]))
    rest = layer.num_points, sizes, shapes, layer.n_levels, QUERIES, layer.decoder_method

    def forward(value, locations, weights):
        return layer.ms_deformable_attn_core(value, jnp.array(shapes), locations, weights, *rest)

    return differentiated(forward, (value, locations, weights))


PARTS = {"whole model": whole_model, "decoder": decoder, "sampling": sampling}


def variables(layer):
    return [[variable.value for variable in some] for some in (layer.trainable_variables, layer.non_trainable_variables)]


def differentiated(forward, arguments):
    """The function itself, and with its gradients in the first three arguments."""

    def squares(*arguments):
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(forward(*arguments)))

    backward = jax.value_and_grad(squares, argnums=(0, 1, 2))
    return Part(
        {
            "forward": lambda *arguments: (forward(*arguments), ()),
            "forward + backward": lambda *arguments: (backward(*arguments), ()),
        },
        arguments,
    )
