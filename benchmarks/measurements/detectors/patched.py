"""Functions and models of the libraries that `jax_dcn.patch` knows, with random arrays and weights."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

RESNET_18 = {
    "backbone_hidden_sizes": (64, 128, 256, 512),
    "backbone_block_repeats": (2, 2, 2, 2),
    "backbone_layer_type": "basic",
    "encoder_in_channels": (128, 256, 512),
}
D_FINE_S = Path(__file__).with_name("keras_hub_d_fine_s.json")


class Program(NamedTuple):
    """The forward of a model, a function of trainable weights and of inputs, which returns its outputs."""

    forward: Callable[[Any, Any], Any]
    weights: Any
    inputs: Any

    def loss(self, weights: Any, inputs: Any) -> jax.Array:
        """The mean of the squares of each of the outputs that are numbers, summed."""
        outputs = jax.tree.leaves(self.forward(weights, inputs))
        return sum(jnp.mean(output**2) for output in outputs if jnp.issubdtype(output.dtype, jnp.floating))


class Model(NamedTuple):
    library: str
    make: Callable[[int | None], Program]
    size: int | None = None  # of the images that are measured; a function has none
    small: int | None = None  # of the images that are tested


def of_keras(model, images, words=None):
    """Matrices that are zeros at first, with which all queries would sample alike or all outputs be zero, vary.

    The words are constants, because Grounding DINO computes with them while its program is traced.
    """
    random = np.random.default_rng(0)
    for weight in model.trainable_variables:
        if len(weight.shape) > 1 and not np.any(weight):
            weight.assign(random.normal(scale=0.05, size=weight.shape))
    weights, rest = ([one.value for one in some] for some in (model.trainable_variables, model.non_trainable_variables))

    def forward(weights, images):
        return model.stateless_call(weights, rest, {"pixel_values": images} | words if words else images)[0]

    return Program(forward, weights, images)


def normal(*shape):
    return jnp.asarray(np.random.default_rng(2).normal(size=shape), "float32")


def of_zeromodels(name, kind, words=None, **configuration):
    """What makes a model of the class `kind` for images of a size."""

    def make(size):
        models = import_module(f"zeromodels.models.{name}")
        model = getattr(models, kind)(image_size=size, **configuration)
        return of_keras(model, normal(1, size, size, 3), words)

    return make


def grounding_dino(size):
    from zeromodels.models import grounding_dino as models

    ids = jnp.array([[101, 4937, 1012, 3899, 1012, 102]])  # of BERT: "cat. dog."
    words = {"input_ids": ids, "attention_mask": jnp.ones_like(ids)}
    program = of_keras(models.GroundingDinoDetect(), normal(1, size, size, 3), words)

    def forward(weights, images):
        outputs = program.forward(weights, images)
        return outputs["logits"][..., : ids.size], outputs["pred_boxes"]  # other logits are those of no word

    return program._replace(forward=forward)


def d_fine(size):
    from keras_hub import models

    shape, of = {"image_shape": (size, size, 3)}, json.loads(D_FINE_S.read_text())
    backbone = models.HGNetV2Backbone(**of["backbone"], **shape)
    queries = min(300, 21 * (size // 32) ** 2)
    model = models.DFineBackbone(
        backbone, **of["detector"], num_queries=queries, anchor_image_size=(size, size), **shape
    )
    return of_keras(model, normal(1, size, size, 3))


def raft(size):
    from jax_raft import raft_large

    model, variables = raft_large()
    return Program(lambda weights, inputs: model.apply(weights, *inputs, False), variables, normal(2, 1, size, size, 3))


def uniform(*shape):
    return jnp.asarray(np.random.default_rng(3).uniform(size=shape), "float32")


def of_function(module, name, call, *arrays):
    """What makes a program that calls the function with the arrays."""

    def make(_):
        library = import_module(module)
        return Program(lambda arrays, _: call(getattr(library, name), *arrays), arrays, ())

    return make


def attention(queries):
    """That of zeromodels, as its encoders and decoders call it."""
    arrays = normal(1, 8, 32, PIXELS), uniform(1, queries, 8, 3, 4, 2), uniform(1, queries, 8, 12)
    module = "zeromodels.models.rt_detr_v2.rt_detr_v2_layers"
    return of_function(
        module, "ms_deform_attn_core", lambda function, value, *rest: function(value, LEVELS, *rest), *arrays
    )


def samples_and_sum(queries):
    """As Mask2Former sums the samples, which a replacement cannot change."""

    def call(function, value, locations, weights):
        return jnp.sum(function(value, locations, LEVELS) * weights[..., None], (3, 4))

    arrays = normal(1, PIXELS, 8, 32), uniform(1, queries, 8, 3, 4, 2), uniform(1, queries, 8, 3, 4)
    return of_function("zeromodels.models.mask2former.mask2former_layers", "bilinear_sample", call, *arrays)


def scenic_attention(queries):
    def call(function, *arrays):
        return function(*arrays, shapes=tuple(LEVELS), use_remat=False, mode="auto")

    arrays = normal(8, PIXELS, 32), uniform(8, 3, 4 * queries, 2), uniform(8, queries, 12)
    return of_function("scenic.projects.baselines.deformable_detr.attention", "deform_attn_sampling_fn", call, *arrays)


def scenic_roi_align(boxes):
    corners = 80 * uniform(boxes, 2, 2)
    boxes = jnp.concatenate([corners.min(1), corners.max(1)], -1)
    module = "scenic.projects.baselines.centernet.modeling.roi_align"
    return of_function(
        module, "roi_align", lambda function, *arrays: function(*arrays, 7, 2), normal(80, 80, 256), boxes
    )


def of_zeromodels_as(size, small, *arguments, **configuration):
    return Model("zeromodels", of_zeromodels(*arguments, **configuration), size, small)


LEVELS = [(80, 80), (40, 40), (20, 20)]
PIXELS = sum(height * width for height, width in LEVELS)
SMALL_DECODER = {"hidden_expansion": 0.5, "decoder_num_layers": 3}
FUNCTIONS = {
    "attention of zeromodels, 8,400 queries": Model("zeromodels", attention(8400)),
    "attention of zeromodels, 300 queries": Model("zeromodels", attention(300)),
    "samples of Mask2Former, 8,400 queries": Model("zeromodels", samples_and_sum(8400)),
    "attention of scenic, 8,400 queries": Model("scenic", scenic_attention(8400)),
    "attention of scenic, 300 queries": Model("scenic", scenic_attention(300)),
    "RoIAlign of scenic, 512 boxes": Model("scenic", scenic_roi_align(512)),
}
DETECTORS = {
    "RT-DETRv2 R18": of_zeromodels_as(640, 128, "rt_detr_v2", "RTDETRV2Detect", **RESNET_18, **SMALL_DECODER),
    "D-FINE-S": of_zeromodels_as(640, 128, "dfine", "DFineDetect", **SMALL_DECODER, decoder_n_points=[3, 6, 3]),
    "D-FINE-S of keras-hub": Model("keras_hub", d_fine, 640, 128),
    "RF-DETR-B": of_zeromodels_as(560, 280, "rf_detr", "RFDETRDetect", out_feature_indexes=[2, 5, 8, 11]),
    "Mask2Former Swin-T": of_zeromodels_as(384, 128, "mask2former", "Mask2FormerUniversalSegment"),
    "Grounding DINO-T": Model("zeromodels", grounding_dino, 384, 224),
    "RAFT": Model("jax_raft", raft, 384, 128),
    "RT-DETR R50": of_zeromodels_as(640, 128, "rt_detr", "RTDETRDetect"),
    "OneFormer Swin-T": of_zeromodels_as(
        512, 128, "oneformer", "OneFormerUniversalSegment", {"task_inputs": jnp.ones((1, 77), "int32")}
    ),
}
MODELS = FUNCTIONS | DETECTORS
