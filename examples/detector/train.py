"""Training on scenes: one jitted step, and data that depends only on the seed and the step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import optax

import jax_dcn
from examples.library.devices import fit_on
from examples.library.loop import Run, State, first_state, update

from . import scenes
from .losses import loss
from .model import Detector


@dataclass(frozen=True)
class Recipe:
    """How to train. The learning rate of offset layers is `offset_rate` times that of all others."""

    steps: int
    batch_size: int = 8
    learning_rate: float = 2e-3
    offset_rate: float = 0.3
    warmup: float = 0.05
    weight_decay: float = 1e-2
    clip_norm: float = 5.0
    seed: int = 0
    checkpoint_every: int = 250

    accumulate: ClassVar = 1


def make_optimiser(recipe: Recipe) -> optax.GradientTransformation:
    """AdamW with warm-up and cosine decay; offset layers have their own learning rate."""

    def adamw(peak):
        warmup_steps = max(1, round(recipe.warmup * recipe.steps))
        rate = optax.warmup_cosine_decay_schedule(0, peak, warmup_steps, max(recipe.steps, warmup_steps + 1))
        return optax.adamw(rate, weight_decay=recipe.weight_decay)

    groups = {"default": adamw(recipe.learning_rate), "offset": adamw(recipe.offset_rate * recipe.learning_rate)}
    return optax.chain(optax.clip_by_global_norm(recipe.clip_norm), optax.partition(groups, jax_dcn.offset_labels))


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def train_step(
    model: Detector, recipe: Recipe, state: State, batch: scenes.Scenes
) -> tuple[State, dict[str, jax.Array]]:
    """One optimiser step on one batch: the new state, and the loss before the step."""
    return update(state, make_optimiser(recipe), lambda params: loss(model, params, batch))


def train(
    model: Detector, recipe: Recipe, directory: Path, *, devices: Sequence[jax.Device] | None = None, **options: Any
) -> Run:
    """Trains a model, with checkpoints in `directory`. options: of `fit`."""
    images = np.zeros((1, scenes.IMAGE_SIZE, scenes.IMAGE_SIZE, 3), np.uint8)
    return fit_on(
        devices,
        partial(train_step, model, recipe),
        partial(first_state, optimiser=make_optimiser(recipe)),
        jax.jit(model.init)(jax.random.key(recipe.seed), images)["params"],
        partial(scenes.training_batches, recipe.seed, recipe.batch_size),
        recipe,
        directory,
        **options,
    )
