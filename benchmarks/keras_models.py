"""`python -m benchmarks.keras_models`: D-FINE of keras-hub, with its own sampling and with this package's operator.

It measures time and peak memory of inference, of a training step, and of the decoder, in the packages keras and
keras-hub.
"""

import os
import statistics

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

QUERIES, CLASSES, CHANNELS, MEMORY_CALLS = 300, 80, 256, 3
STAGES = {"out_features": ["stage2", "stage3", "stage4"]}
B0 = {
    **{"stem_channels": [3, 16, 16], "embedding_size": 16, "depths": [1, 1, 2, 1], "hidden_act": "relu", **STAGES},
    "stackwise_stage_filters": [[16, 16, 64, 1, 3, 3], [64, 32, 256, 1, 3, 3], [256, 64, 512, 2, 3, 5]]
    + [[512, 128, 1024, 1, 3, 5]],
    **{"hidden_sizes": [64, 256, 512, 1024], "apply_downsample": [False, True, True, True]},
    **{"use_lightweight_conv_block": [False, False, True, True], "use_learnable_affine_block": True},
}
D_FINE_S = {
    **{"hidden_dim": CHANNELS, "encoder_hidden_dim": CHANNELS, "encoder_in_channels": [256, 512, 1024]},
    **{"decoder_in_channels": [CHANNELS] * 3, "feat_strides": [8, 16, 32], "num_feature_levels": 3},
    **{"encode_proj_layers": [2], "num_encoder_layers": 1, "num_attention_heads": 8, "encoder_ffn_dim": 1024},
    **{"hidden_expansion": 0.5, "depth_multiplier": 0.34, "num_decoder_layers": 3, "decoder_attention_heads": 8},
    **{"decoder_ffn_dim": 1024, "decoder_n_points": [3, 6, 3], "lqe_hidden_dim": 64, "num_lqe_layers": 2},
    **{"num_queries": QUERIES, "num_labels": CLASSES, "learn_initial_query": False, "eval_idx": -1, **STAGES},
}
ABOUT = (
    "D-FINE-S with random weights, images of {size} x {size} pixels, 300 queries, float32, Keras on JAX. One model is "
    "compiled twice: as keras-hub has it, and after `use_kernels` of `examples/keras_d_fine.py`. A training step is "
    "the forward, keras-hub's losses for 3 objects per image without denoising, the gradients, and AdamW. The "
    "decoder's gradients are those of the sum of the squares of its scores and boxes, in its weights and inputs. "
    "Milliseconds: the median of {repeats} calls that take turns, with the smallest and the largest. MiB: how far a "
    f"call makes the process grow, results included; the median of {MEMORY_CALLS} calls. Difference: the largest "
    "between the results (of a training step, between the losses), as a fraction of the largest result."
)


def detector(size):
    """keras-hub initialises some weights with zeros, with which all queries would sample alike."""
    import keras
    from keras_hub import models

    keras.utils.set_random_seed(0)
    shape = {"image_shape": (size, size, 3)}
    sizes = {"anchor_image_size": (size, size), "num_denoising": 0, **shape}
    body = models.DFineBackbone(models.HGNetV2Backbone(**B0, **shape), **D_FINE_S, **sizes)
    random = np.random.default_rng(0)
    for weight in body.decoder.trainable_variables:
        if weight.path.endswith("kernel") and not np.any(weight):
            weight.assign(random.normal(scale=0.05, size=weight.shape))
    return models.DFineObjectDetector(body, num_classes=CLASSES, bounding_box_format="xyxy")


def programs(model, batch):
    """Functions and their arguments, by name. A result has what is compared, and what is not."""
    import keras

    def values(variables):
        return [variable.value for variable in variables]

    def inference(weights, rest, images):
        outputs, _ = model.stateless_call(weights, rest, images, training=False)
        return (outputs["logits"], outputs["pred_boxes"]), ()

    def training_step(weights, rest, images, state):
        def loss(weights):
            outputs, averages = model.stateless_call(weights, rest, images, training=True)
            return model.compute_loss(images, targets, outputs, None), averages

        (value, averages), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        return value, (averages, optimizer.stateless_apply(state, gradients, weights))

    def decode(weights, queries, pixels, rest, boxes):
        results, _ = decoder.stateless_call(weights, rest, queries, pixels, boxes, jnp.array(levels), training=False)
        return results[2:4]

    def squares(*arguments):
        return sum(jnp.sum(result**2) for result in decode(*arguments))

    side, decoder = model.backbone.image_shape[0], model.backbone.decoder
    levels, keys = decoder.spatial_shapes, jax.random.split(jax.random.key(0), 4)
    images = jax.random.uniform(keys[0], (batch, side, side, 3), maxval=255)
    boxes = side * jnp.array([[0.1, 0.1, 0.3, 0.4], [0.2, 0.3, 0.9, 0.8], [0.5, 0, 0.7, 0.2]])
    targets = {"boxes": jnp.tile(boxes, (batch, 1, 1)), "labels": jnp.tile(jnp.arange(3), (batch, 1))}
    optimizer = keras.optimizers.AdamW(1e-4)
    optimizer.build(model.trainable_variables)
    of_model = values(model.trainable_variables), values(model.non_trainable_variables), images
    weights, rest = values(decoder.trainable_variables), values(decoder.non_trainable_variables)
    shapes = (QUERIES, CHANNELS), (sum(height * width for height, width in levels), CHANNELS), (QUERIES, 4)
    queries, pixels, boxes = (jax.random.normal(*of) for of in zip(keys[1:], ((batch, *s) for s in shapes)))
    of_decoder = weights, queries, pixels, rest, boxes
    backward = jax.value_and_grad(squares, argnums=(0, 1, 2))
    return {
        "inference": (inference, of_model),
        "training step": (training_step, (*of_model, values(optimizer.variables))),
        "decoder, forward": (lambda *arguments: (decode(*arguments), ()), of_decoder),
        "decoder, forward + backward": (lambda *arguments: (backward(*arguments), ()), of_decoder),
    }


def compiled(model, batch):
    """The calls by name. Keras sees `jit` and its own variables, so each program is traced by a new function."""
    return {
        name: Call(partial(jax.jit(function).lower(*arguments).compile(), *arguments))
        for name, (function, arguments) in programs(model, batch).items()
    }
