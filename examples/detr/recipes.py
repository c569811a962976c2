"""How detection transformers are trained: their losses, and the recipes of the authors."""

from dataclasses import dataclass, replace
from typing import Any

import jax

from examples.library.recipe import Recipe
from examples.resnet.model import FIRST_PARAMETERS

from . import weights
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
# By model_type: D-FINE's from the configs of Peterande/D-FINE (size S), Deformable DETR's from
# fundamentalvision/Deformable-DETR.
RECIPES = {
    "rt_detr_v2": RT_DETR,
    "rt_detr": RT_DETR,
    "d_fine": replace(RT_DETR, learning_rate=2e-4, backbone_rate=0.5, warmup=500, ema_warmup=1000),
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
}


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
        return self.criterion(outputs, batch.targets, denoising), updated["batch_stats"]
