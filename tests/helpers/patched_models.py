"""Models of the libraries that `jax_dcn.patch` knows, with random arrays and weights."""

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
    make: Callable[[], Program]


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


def of_zeromodels(size, name, kind, words=None, **configuration):
    def make():
        models = import_module(f"zeromodels.models.{name}")
        model = getattr(models, kind)(image_size=size, **configuration)
        return of_keras(model, normal(1, size, size, 3), words)

    return Model("zeromodels", make)


def grounding_dino():
    from zeromodels.models import grounding_dino as models

    ids = jnp.array([[101, 4937, 1012, 3899, 1012, 102]])  # of BERT: "cat. dog."
    words = {"input_ids": ids, "attention_mask": jnp.ones_like(ids)}
    program = of_keras(models.GroundingDinoDetect(), normal(1, 224, 224, 3), words)

    def forward(weights, images):
        outputs = program.forward(weights, images)
        return outputs["logits"][..., : ids.size], outputs["pred_boxes"]  # other logits are those of no word

    return program._replace(forward=forward)


def d_fine():
    from keras_hub import models

    shape, of = {"image_shape": (128, 128, 3)}, json.loads(D_FINE_S.read_text())
    backbone = models.HGNetV2Backbone(**of["backbone"], **shape)
    model = models.DFineBackbone(backbone, **of["detector"], num_queries=300, anchor_image_size=(128, 128), **shape)
    return of_keras(model, normal(1, 128, 128, 3))


def raft():
    from jax_raft import raft_large

    model, variables = raft_large()
    return Program(lambda weights, inputs: model.apply(weights, *inputs, False), variables, normal(2, 1, 128, 128, 3))


SMALL_DECODER = {"hidden_expansion": 0.5, "decoder_num_layers": 3}
DETECTORS = {
    "RT-DETRv2 R18": of_zeromodels(128, "rt_detr_v2", "RTDETRV2Detect", **RESNET_18, **SMALL_DECODER),
    "D-FINE-S": of_zeromodels(128, "dfine", "DFineDetect", **SMALL_DECODER, decoder_n_points=[3, 6, 3]),
    "D-FINE-S of keras-hub": Model("keras_hub", d_fine),
    "RF-DETR-B": of_zeromodels(280, "rf_detr", "RFDETRDetect", out_feature_indexes=[2, 5, 8, 11]),
    "Mask2Former Swin-T": of_zeromodels(128, "mask2former", "Mask2FormerUniversalSegment"),
    "Grounding DINO-T": Model("zeromodels", grounding_dino),
    "RAFT": Model("jax_raft", raft),
    "RT-DETR R50": of_zeromodels(128, "rt_detr", "RTDETRDetect"),
    "OneFormer Swin-T": of_zeromodels(
        128, "oneformer", "OneFormerUniversalSegment", {"task_inputs": jnp.ones((1, 77), "int32")}
    ),
}
