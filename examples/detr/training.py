"""The training step of a detection transformer, and a run of many on all devices."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from examples.library.devices import fit_on
from examples.library.gradients import gradients
from examples.library.loop import Run

from . import weights
from .criterion import Criterion
from .data import Batch
from .denoising import count, draw, make_denoising
from .evaluate import Detector
from .optimiser import Recipe, make_optimiser, moved_average, rate
from .weights import Checkpoint


@struct.dataclass
class State:
    """Everything that a step changes: average is the moving average of the variables, None if there is none."""

    step: jax.Array
    variables: dict[str, Any]
    optimiser: optax.OptState
    average: dict[str, Any] | None

    @property
    def best(self) -> dict[str, Any]:
        """The variables to evaluate and to keep."""
        return self.variables if self.average is None else self.average


def first_state(variables: dict[str, Any], recipe: Recipe) -> State:
    """The state before the first step."""
    average = jax.tree.map(jnp.copy, variables) if recipe.ema else None
    return State(jnp.zeros((), jnp.int32), variables, make_optimiser(recipe).init(variables["params"]), average)


@partial(jax.jit, static_argnames=("detector", "criterion", "recipe"), donate_argnames="state")
def train_step(
    detector: Detector, criterion: Criterion, recipe: Recipe, state: State, batch: Batch
) -> tuple[State, dict[str, jax.Array]]:
    """One optimiser step on one batch: the new state, and the losses by name, their sum "loss" and the rate."""
    key = jax.random.fold_in(jax.random.key(recipe.seed), state.step)
    params, statistics = state.variables["params"], state.variables.get("batch_stats", {})

    def loss(params, statistics, part, number):
        variables = {"params": params, "batch_stats": statistics}
        return losses(detector, criterion, variables, part, jax.random.fold_in(key, number))

    slopes, found, statistics = gradients(loss, params, statistics, batch, recipe.accumulate)
    updates, optimiser = make_optimiser(recipe).update(slopes, state.optimiser, params)
    variables = {"params": optax.apply_updates(params, updates), "batch_stats": statistics}
    average = state.average
    if average is not None:
        average = moved_average(recipe, average, variables, state.step)
    measured = {"loss": sum(found.values()), **found, "rate": rate(recipe)(state.step)}
    return State(state.step + 1, variables, optimiser, average), measured


def losses(
    detector: Detector, criterion: Criterion, variables: dict[str, Any], batch: Batch, key: jax.Array
) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """The weighted losses by name, and the statistics of batch normalisations after the batch."""
    config = detector.model.config
    noise_key, dropout_key = jax.random.split(key)
    denoising, keywords = None, {}
    if getattr(config, "num_denoising", 0):
        draws = draw(noise_key, count(config.num_denoising, batch.targets), batch.targets, config.num_labels)
        denoising = make_denoising(
            draws,
            batch.targets,
            classes=config.num_labels,
            num_queries=config.num_queries,
            num_denoising=config.num_denoising,
            label_noise_ratio=config.label_noise_ratio,
            box_noise_scale=config.box_noise_scale,
            flips_negative_sizes=config.flips_negative_sizes,
        )
        keywords = {"denoising": denoising}
    outputs, updated = detector.model.apply(
        variables,
        *detector.arguments(batch.images, batch.mask),
        train=True,
        rngs={"dropout": dropout_key},
        mutable=["batch_stats"],
        **keywords,
    )
    return criterion(outputs, batch.targets, denoising), updated["batch_stats"]


def train(
    checkpoint: Checkpoint,
    recipe: Recipe,
    batches: Callable[[range], Any],
    directory: Path,
    *,
    devices: Sequence[jax.Device] | None = None,
    **options: Any,
) -> Run:
    """Trains the model of a checkpoint; its batches are shared by all devices, by default those of all processes.

    options: of `fit`.
    """
    detector, criterion = Detector.of(checkpoint), weights.criterion(checkpoint)
    return fit_on(
        devices,
        partial(train_step, detector, criterion, recipe),
        partial(first_state, recipe=recipe),
        checkpoint.variables,
        batches,
        recipe,
        directory,
        **options,
    )
