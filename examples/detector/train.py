"""Training on scenes: one jitted step, and data that depends only on the seed and the step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import flax.linen as nn
import jax
import numpy as np
import optax

import jax_dcn
from examples.library.devices import fit_on
from examples.library.loop import Run, State, first_state, update

from . import scenes

# loss(model, params, batch): the number to minimise.
Loss = Callable[[nn.Module, dict, scenes.Scenes], jax.Array]


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


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=3)
def train_step(
    model: nn.Module, loss: Loss, recipe: Recipe, state: State, batch: scenes.Scenes
) -> tuple[State, dict[str, jax.Array]]:
    """One optimiser step on one batch: the new state, and the loss before the step."""
    return update(state, make_optimiser(recipe), lambda params: loss(model, params, batch))


def train(
    model: nn.Module,
    loss: Loss,
    recipe: Recipe,
    directory: Path,
    *,
    devices: Sequence[jax.Device] | None = None,
    image_size: int = scenes.IMAGE_SIZE,
    **options: Any,
) -> Run:
    """Trains a model, which takes images, to minimise `loss`, with checkpoints in `directory`. options: of `fit`."""
    images = np.zeros((1, image_size, image_size, 3), np.uint8)
    return fit_on(
        devices,
        partial(train_step, model, loss, recipe),
        partial(first_state, optimiser=make_optimiser(recipe)),
        jax.jit(model.init)(jax.random.key(recipe.seed), images)["params"],
        partial(scenes.training_batches, recipe.seed, recipe.batch_size, image_size),
        recipe,
        directory,
        **options,
    )
