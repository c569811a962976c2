"""Training: one jitted step, data that depends only on (seed, step), and checkpoints to resume from."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import struct
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from tqdm import tqdm

import jax_dcn

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
    checkpoint_every: int = 250


@struct.dataclass
class State:
    """Everything that a step changes. The data of a step and all randomness follow from the seed and `step`."""

    step: jax.Array
    params: dict
    optimiser: optax.OptState


class Run(NamedTuple):
    """A finished training: the last state, and the loss and the wall time in milliseconds of each step."""

    state: State
    losses: list[float]
    milliseconds: list[float]


def make_optimiser(recipe: Recipe) -> optax.GradientTransformation:
    """AdamW with warm-up and cosine decay; offset layers have their own learning rate."""

    def adamw(peak):
        warmup_steps = max(1, round(recipe.warmup * recipe.steps))
        rate = optax.warmup_cosine_decay_schedule(0, peak, warmup_steps, max(recipe.steps, warmup_steps + 1))
        return optax.adamw(rate, weight_decay=recipe.weight_decay)

    rates = {"default": adamw(recipe.learning_rate), "offset": adamw(recipe.offset_rate * recipe.learning_rate)}
    return optax.chain(optax.clip_by_global_norm(recipe.clip_norm), optax.partition(rates, jax_dcn.offset_labels))


# The state is replicated on all devices of the mesh; the sharding of a batch decides how they share the work.
@partial(jax.jit, static_argnums=(0, 1, 2), out_shardings=P())
def initial_state(model: nn.Module, recipe: Recipe, image_size: int, seed: int) -> State:
    """The state before the first step."""
    images = jnp.zeros((1, image_size, image_size, 3), jnp.uint8)
    params = model.init(jax.random.key(seed), images)["params"]
    return State(jnp.zeros((), jnp.int32), params, make_optimiser(recipe).init(params))


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=3, out_shardings=P())
def train_step(
    model: nn.Module, loss: Loss, recipe: Recipe, state: State, batch: scenes.Scenes
) -> tuple[State, jax.Array]:
    """One optimiser step on one batch: the new state, and the loss before the step."""
    value, gradient = jax.value_and_grad(loss, argnums=1)(model, state.params, batch)
    updates, optimiser_state = make_optimiser(recipe).update(gradient, state.optimiser, state.params)
    return State(state.step + 1, optax.apply_updates(state.params, updates), optimiser_state), value


def train(
    model: nn.Module,
    loss: Loss,
    recipe: Recipe,
    seed: int,
    directory: Path,
    *,
    resume: bool = False,
    stop_after: int | None = None,
    image_size: int = scenes.IMAGE_SIZE,
    devices: Sequence[jax.Device] | None = None,
    title: str = "training",
) -> Run:
    """Train a model, which takes images, to minimise `loss` for `recipe.steps` steps, with checkpoints in `directory`.

    resume: continue from the newest checkpoint, if any, as if never interrupted; otherwise delete old checkpoints.
    stop_after: stop after that many steps, like an interruption.
    devices: the devices that share each batch, by default one. They may belong to several processes, if all of them
    call this function. A run may be resumed on other devices.
    """
    devices = devices or jax.devices()[:1]
    if recipe.batch_size % len(devices):
        raise ValueError(f"batch_size must be a multiple of the {len(devices)} devices, got {recipe.batch_size}")
    mesh = jax.make_mesh((len(devices),), ("data",), (AxisType.Auto,), devices=devices)
    split = NamedSharding(mesh, P("data"))
    origin = model, recipe, image_size, seed
    options = ocp.CheckpointManagerOptions(max_to_keep=1, save_interval_steps=recipe.checkpoint_every, create=True)
    with jax.set_mesh(mesh), ocp.CheckpointManager(directory.absolute(), options=options) as checkpoints:
        if resume and checkpoints.latest_step() is not None:
            state, losses, milliseconds = _restore(checkpoints, initial_state.eval_shape(*origin), recipe)
        else:
            for step in checkpoints.all_steps():
                checkpoints.delete(step)
            state, losses, milliseconds = initial_state(*origin), [], []
        last = min(recipe.steps, stop_after or recipe.steps)
        remaining = range(len(losses), last)
        silent = jax.process_index() > 0
        progress = tqdm(remaining, title, last, initial=remaining.start, mininterval=1, disable=silent)
        rows = _own_rows(split, recipe.batch_size)
        for own in scenes.training_batches(seed, remaining, recipe.batch_size, image_size, rows):
            start = time.perf_counter()
            batch = jax.make_array_from_process_local_data(split, own)
            state, value = train_step(model, loss, recipe, state, batch)
            losses.append(value.item())
            milliseconds.append(1e3 * (time.perf_counter() - start))
            progress.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
            progress.update()
            _save(checkpoints, recipe, state, losses, milliseconds, force=len(losses) == last)
        progress.close()
    return Run(state, losses, milliseconds)


def _own_rows(split, batch_size):
    """The rows of a batch that belong to devices of this process."""
    slices = split.addressable_devices_indices_map((batch_size,)).values()
    return sorted({row for (rows,) in slices for row in range(batch_size)[rows]})


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
