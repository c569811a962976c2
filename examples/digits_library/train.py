"""Training on scenes: one jitted step, and data that depends only on (seed, step)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_dcn
from examples.library.loop import Run, Start, State, first_state, fit, update

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

    @property
    def group_rates(self) -> dict[str, float]:
        """The peak learning rate of each group of parameters, by the labels of `jax_dcn.offset_labels`."""
        return {"default": self.learning_rate, "offset": self.offset_rate * self.learning_rate}


def make_optimiser(recipe: Recipe) -> optax.GradientTransformation:
    """AdamW with warm-up and cosine decay; offset layers have their own learning rate."""

    def adamw(peak):
        warmup_steps = max(1, round(recipe.warmup * recipe.steps))
        rate = optax.warmup_cosine_decay_schedule(0, peak, warmup_steps, max(recipe.steps, warmup_steps + 1))
        return optax.adamw(rate, weight_decay=recipe.weight_decay)

    groups = {group: adamw(peak) for group, peak in recipe.group_rates.items()}
    return optax.chain(optax.clip_by_global_norm(recipe.clip_norm), optax.partition(groups, jax_dcn.offset_labels))


# The state is replicated on all devices of the mesh; the sharding of a batch decides how they share the work.
@partial(jax.jit, static_argnums=(0, 1, 2), out_shardings=P())
def initial_state(model: nn.Module, recipe: Recipe, image_size: int, seed: int) -> State:
    """The state before the first step."""
    images = jnp.zeros((1, image_size, image_size, 3), jnp.uint8)
    return first_state(model.init(jax.random.key(seed), images)["params"], make_optimiser(recipe))


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=3, out_shardings=P())
def train_step(
    model: nn.Module, loss: Loss, recipe: Recipe, state: State, batch: scenes.Scenes
) -> tuple[State, dict[str, jax.Array]]:
    """One optimiser step on one batch: the new state, and the loss before the step."""
    return update(state, make_optimiser(recipe), lambda params: loss(model, params, batch))


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
    rows = _own_rows(split, recipe.batch_size)

    def step(state, own):
        return train_step(model, loss, recipe, state, jax.make_array_from_process_local_data(split, own))

    def batches(steps):
        return scenes.training_batches(seed, steps, recipe.batch_size, image_size, rows)

    with jax.set_mesh(mesh):
        start = Start(partial(initial_state, *origin), initial_state.eval_shape(*origin))
        return fit(
            step, start, batches, recipe, directory, resume=resume, overwrite=True, stop_after=stop_after, title=title
        )


def _own_rows(split, batch_size):
    """The rows of a batch that belong to devices of this process."""
    slices = split.addressable_devices_indices_map((batch_size,)).values()
    return sorted({row for (rows,) in slices for row in range(batch_size)[rows]})
