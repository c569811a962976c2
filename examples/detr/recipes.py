"""How detection transformers are trained: their losses, and the recipes of the authors."""

from dataclasses import dataclass, replace
from typing import Any

import jax

from examples.library.recipe import Recipe
from examples.resnet.model import FIRST_PARAMETERS

from . import weights
from .config import LwDetrConfig, RfDetrConfig
from .criterion import Criterion
from .data import Batch
from .denoising import count, draw, make_denoising
from .evaluate import Detector
from .weights import Checkpoint

# RT-DETRv2's for a ResNet-50 (configs of lyuwenyu/RT-DETR), but for the stem, which these freeze, and for biases, which
# have weight decay there.
RT_DETR = Recipe(
    10000,
    batch_size=16,
    backbone_rate=0.1,
    warmup=2000,
    clip_norm=0.1,
    ema=0.9999,
    position_names=("reference_points",),
)
# LW-DETR's for its sizes tiny to medium (scripts of Atten4Vis/LW-DETR). The rate of its backbone falls from layer to
# layer, see `recipe_of`.
LAYER_DECAY, PART_DECAY = 0.8, 0.7
LW_DETR = replace(
    RT_DETR,
    batch_size=32,
    backbone_rate=1.5 * PART_DECAY**2,
    warmup=0,
    norm_decay=True,
    undecayed=r"^backbone/.*/(bias|scale|gamma_\d|position_embeddings)$",
    ema=0.9997,
    ema_warmup=0,
)
# By model_type: D-FINE's from the configs of Peterande/D-FINE (size S), DEIMv2's from those of
# Intellindust-AI-Lab/DEIMv2 (size N), Deformable DETR's from fundamentalvision/Deformable-DETR, RF-DETR's from rfdetr
# 1.11.
RECIPES = {
    "rt_detr_v2": RT_DETR,
    "rt_detr": RT_DETR,
    "d_fine": replace(RT_DETR, learning_rate=2e-4, backbone_rate=0.5, warmup=500, ema_warmup=1000),
    "deimv2": replace(RT_DETR, batch_size=32, learning_rate=8e-4, backbone_rate=0.5, ema_warmup=1000),
    "deformable_detr": replace(
        RT_DETR,
        learning_rate=2e-4,
        offset_rate=0.1,
        warmup=0,
        decays=(0.8,),
        norm_decay=True,
        frozen=FIRST_PARAMETERS,
        ema=0.0,
    ),
    "lw_detr": LW_DETR,
    "rf_detr": replace(
        LW_DETR,
        batch_size=16,
        undecayed=r"^backbone/(embeddings/.*|.*/(bias|scale|gamma_\d))$",
        ema=0.993,
        ema_warmup=100,
    ),
}


def recipe_of(checkpoint: Checkpoint) -> Recipe:
    """The authors' recipe for a model; in that of LW-DETR and RF-DETR, each layer of the backbone has its own rate."""
    recipe, config = RECIPES[checkpoint.model_type], checkpoint.model.config
    if not isinstance(config, LwDetrConfig):
        return recipe
    layers = config.backbone.num_hidden_layers
    top = config.backbone.out_indices[-1] + 1 if isinstance(config, RfDetrConfig) else layers
    starts = ["embeddings", *(f"layer_{index}" for index in range(layers))]
    factors = [(f"backbone/{start}/", LAYER_DECAY ** (top + 1 - level)) for level, start in enumerate(starts)]
    return replace(recipe, factors=(("decoder/", PART_DECAY), ("ref_point_head/", PART_DECAY), *factors))


@dataclass(frozen=True)
class Loss:
    """The weighted losses of a batch by name, and the statistics of batch normalisations after it."""

    detector: Detector
    criterion: Criterion

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Loss":
        """The loss that the model of a checkpoint is trained with."""
        return cls(Detector.of(checkpoint), weights.criterion(checkpoint))

    def __call__(
        self, variables: dict[str, Any], batch: Batch, key: jax.Array
    ) -> tuple[dict[str, jax.Array], dict[str, Any]]:
        config = self.detector.model.config
        noise_key, dropout_key = jax.random.split(key)
        denoising, keywords = None, {}
        if getattr(config, "num_denoising", 0):
            draws = draw(noise_key, count(config.num_denoising, batch.targets), batch.targets, config.num_labels)
            denoising = make_denoising(draws, batch.targets, config)
            keywords = {"denoising": denoising}
        outputs, updated = self.detector.model.apply(
            variables,
            *self.detector.arguments(batch.images, batch.mask),
            train=True,
            rngs={"dropout": dropout_key},
            mutable=["batch_stats"],
            **keywords,
        )
        return self.criterion(outputs, batch.targets, denoising), updated.get("batch_stats", {})
