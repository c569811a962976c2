"""Training on scenes, whose data depends only on the seed and the step."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from examples.library.recipe import Recipe
from examples.library.training import Task

from . import scenes
from .losses import losses
from .model import RFCN

RECIPE = Recipe(
    steps=1600,
    batch_size=8,
    learning_rate=2e-3,
    offset_rate=0.3,
    warmup_from=0.0,
    cosine=True,
    weight_decay=1e-2,
    norm_decay=True,
    clip_norm=5.0,
    checkpoint_every=250,
)


@dataclass(frozen=True)
class Loss:
    """The losses of a batch, and the statistics of a model without any."""

    model: RFCN

    def __call__(
        self, variables: dict[str, Any], batch: scenes.Scenes, key: jax.Array
    ) -> tuple[dict[str, jax.Array], Any]:
        return losses(self.model, variables["params"], batch), variables["batch_stats"]


def task_of(model: RFCN, recipe: Recipe) -> Task:
    """What is trained, from random weights."""
    images = np.zeros((1, scenes.IMAGE_SIZE, scenes.IMAGE_SIZE, 3), np.uint8)
    variables = jax.jit(model.init)(jax.random.key(recipe.seed), images)
    return Task(recipe, variables, Loss(model), partial(scenes.training_batches, recipe.seed, recipe.batch_size))
