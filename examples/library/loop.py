"""The training loop of all detectors: progress, losses and times, and checkpoints to resume from."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import struct
from tqdm import tqdm

Batch = TypeVar("Batch")


@struct.dataclass
class State:
    """Everything that a step changes. The data of a step and all randomness follow from the seed and `step`."""

    step: jax.Array
    params: dict
    optimiser: optax.OptState


def first_state(params: dict, optimiser: optax.GradientTransformation) -> State:
    """The state before the first step."""
    return State(jnp.zeros((), jnp.int32), params, optimiser.init(params))


def update(
    state: State, optimiser: optax.GradientTransformation, loss: Callable[[dict], jax.Array]
) -> tuple[State, jax.Array]:
    """One step of the optimiser: the new state, and the loss of the parameters before the step."""
    value, gradient = jax.value_and_grad(loss)(state.params)
    updates, optimiser_state = optimiser.update(gradient, state.optimiser, state.params)
    return State(state.step + 1, optax.apply_updates(state.params, updates), optimiser_state), value


class Run(NamedTuple):
    """A finished training: the last state, and the loss and the wall time in milliseconds of each step."""

    state: State
    losses: list[float]
    milliseconds: list[float]


class Start(NamedTuple):
    """How a run starts: a function that makes its first state, and the shapes of that state."""

    make: Callable[[], State]
    shapes: State


def fit(
    step: Callable[[State, Any], tuple[State, jax.Array]],
    start: Start,
    batches: Callable[[range], Iterator[Any]],
    recipe: Any,
    directory: Path,
    *,
    resume: bool = False,
    stop_after: int | None = None,
    title: str = "training",
) -> Run:
    """Apply `step`, which returns the new state and the loss, to the batches of all steps of the recipe.

    batches: takes the numbers of the steps that remain.
    recipe: a dataclass with `steps` and `checkpoint_every`, among others; a run that is resumed must have the same.
    resume: continue from the newest checkpoint in `directory`, if any, as if never interrupted; otherwise delete old
    checkpoints. stop_after: stop after that many steps, like an interruption.
    """
    options = ocp.CheckpointManagerOptions(max_to_keep=1, save_interval_steps=recipe.checkpoint_every, create=True)
    with ocp.CheckpointManager(directory.absolute(), options=options) as checkpoints:
        if resume and checkpoints.latest_step() is not None:
            state, losses, milliseconds = _restore(checkpoints, start.shapes, recipe)
        else:
            for old in checkpoints.all_steps():
                checkpoints.delete(old)
            state, losses, milliseconds = start.make(), [], []
        last = min(recipe.steps, stop_after or recipe.steps)
        remaining = range(len(losses), last)
        silent = jax.process_index() > 0
        progress = tqdm(remaining, title, last, initial=remaining.start, mininterval=1, disable=silent)
        for batch in batches(remaining):
            began = time.perf_counter()
            state, value = step(state, batch)
            losses.append(value.item())
            milliseconds.append(1e3 * (time.perf_counter() - began))
            progress.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
            progress.update()
            _save(checkpoints, recipe, state, losses, milliseconds, force=len(losses) == last)
        progress.close()
    return Run(state, losses, milliseconds)


def ahead(make: Callable[[int], Batch], steps: range) -> Iterator[Batch]:
    """`make(step)` of all steps; a thread prepares the next one while the caller uses the last."""
    with ThreadPoolExecutor(1) as worker:
        upcoming = worker.submit(make, steps.start) if steps else None
        for step in steps:
            current = upcoming.result()
            if step + 1 in steps:
                upcoming = worker.submit(make, step + 1)
            yield current


def _save(checkpoints, recipe, state, losses, milliseconds, force):
    if not (force or checkpoints.should_save(len(losses))):
        return
    history = {"recipe": asdict(recipe), "losses": losses, "milliseconds": milliseconds}
    items = ocp.args.Composite(state=ocp.args.StandardSave(state), history=ocp.args.JsonSave(history))
    checkpoints.save(len(losses), args=items, force=force)


def _restore(checkpoints, like, recipe):
    items = ocp.args.Composite(state=ocp.args.StandardRestore(like), history=ocp.args.JsonRestore())
    restored = checkpoints.restore(checkpoints.latest_step(), args=items)
    for name, value in restored.history["recipe"].items():
        if value != getattr(recipe, name):
            raise ValueError(
                f"{name} must be {value} to go on from {checkpoints.directory}, got {getattr(recipe, name)}"
            )
    return restored.state, restored.history["losses"], restored.history["milliseconds"]
