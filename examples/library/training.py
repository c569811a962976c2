"""Trains a model: what it takes, one jitted step, and a run of many on all devices, with evaluations and results.

A detector is trained by a `Task`: its variables, a loss, batches and a recipe. The devices of all processes share each
batch, and each has a replica of the state.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from .checkpoints import StartError, locked
from .coco import Dataset
from .devices import mesh_of, on_own, shared
from .files import to_json
from .loop import Options, Run, Work, evaluations_since_best, fit
from .measurements import write_table
from .optimiser import Layout, Packed, described_rates, make_optimiser, moved_average, rate
from .photographs import ImageError
from .plots import draw_curves, draw_mistakes
from .precision import Evaluation, described
from .recipe import Recipe

Variables = dict[str, Any]
# From variables, a batch and a key to the losses by name, whose sum is minimised, and the statistics afterwards.
Loss = Callable[[Variables, Any, jax.Array], tuple[dict[str, jax.Array], Any]]


class Validation(NamedTuple):
    """How variables are evaluated.

    best: the score that decides which are kept. dataset: whose mistakes are drawn. drawn: further scores that are.
    """

    measure: Callable[[Variables], Evaluation]
    best: str
    dataset: Dataset
    drawn: Sequence[str] = ()


class Results(NamedTuple):
    """What is left of a run. save: writes variables to a path, which has the suffix. draw: writes what is found."""

    save: Callable[[Path, Variables], None]
    suffix: str = ""
    draw: Callable[[Path, Variables], None] | None = None


class Task(NamedTuple):
    """What is trained.

    variables: at the start, "params" and, if the model has any, "batch_stats". loss: hashable, because it is a static
    argument of the step. batches: makes the `own_rows` of the batches of these steps, and depends on nothing else.
    """

    recipe: Recipe
    variables: Variables
    loss: Loss
    batches: Callable[[range], Iterable[Any]]
    validation: Validation | None = None
    results: Results | None = None


@struct.dataclass
class State:
    """Everything that a step changes.

    others: the variables that are no parameters. average: the moving average of the vectors of parameters and of the
    others, None if there is none. The data of a step and all randomness follow from the seed and `step`.
    """

    step: jax.Array
    params: Packed
    others: Variables
    optimiser: optax.OptState
    average: tuple[dict[str, jax.Array], Variables] | None
    layout: Layout = struct.field(pytree_node=False)

    @property
    def variables(self) -> Variables:
        return self.others | {"params": self.layout.unpack(self.params)}

    @property
    def best(self) -> Variables:
        """The variables to evaluate and to keep, in NumPy, so that one of several processes may take them alone."""
        average = (self.params.vectors, self.others) if self.average is None else self.average
        vectors, others, frozen = jax.device_get((*average, self.params.frozen))
        return others | {"params": self.layout.unpack(Packed(vectors, frozen))}


def first_state(recipe: Recipe, variables: Variables) -> State:
    """The state before the first step."""
    others = {"batch_stats": {}} | {name: tree for name, tree in variables.items() if name != "params"}
    layout = Layout.of(recipe, variables["params"])
    params = layout.pack(variables["params"])
    optimiser = make_optimiser(recipe, layout.rules).init(params.vectors)
    average = jax.tree.map(jnp.copy, (params.vectors, others)) if recipe.ema else None
    return State(jnp.zeros((), jnp.int32), params, others, optimiser, average, layout)


@partial(jax.jit, static_argnames=("loss", "recipe"), donate_argnames="state")
def train_step(loss: Loss, recipe: Recipe, state: State, batch: Any) -> tuple[State, dict[str, jax.Array]]:
    """One optimiser step on one batch: the new state, and the losses by name, their sum "loss" and the rate."""
    slopes, losses, statistics = gradients(loss, recipe, state, batch)
    vectors = state.params.vectors
    optimiser = make_optimiser(recipe, state.layout.rules)
    updates, moments = optimiser.update(state.layout.pack(slopes).vectors, state.optimiser, vectors)
    vectors = optax.apply_updates(vectors, updates)
    others = state.others | {"batch_stats": statistics}
    average = None if state.average is None else moved_average(recipe, state.average, (vectors, others), state.step)
    measured = {"loss": sum(losses.values()), **losses, "rate": rate(recipe)(state.step)}
    params = state.params._replace(vectors=vectors)
    return State(state.step + 1, params, others, moments, average, state.layout), measured


def gradients(loss: Loss, recipe: Recipe, state: State, batch: Any) -> tuple[Any, dict[str, jax.Array], Any]:
    """The gradients of the parameters and the losses, both as means over `accumulate` parts of the batch, and the last
    statistics. Each part sees the statistics that the one before has left, and has a key of its own."""
    key = jax.random.fold_in(jax.random.key(recipe.seed), state.step)
    variables, parts = state.variables, recipe.accumulate

    def of_part(statistics, numbered):
        number, part = numbered

        def total(params):
            given = variables | {"params": params, "batch_stats": statistics}
            losses, after = loss(given, part, jax.random.fold_in(key, number))
            return sum(losses.values()), (losses, after)

        slopes, (losses, after) = jax.grad(total, has_aux=True)(variables["params"])
        return after, (slopes, losses)

    statistics = variables["batch_stats"]
    if parts == 1:
        statistics, (slopes, losses) = of_part(statistics, (0, batch))
        return slopes, losses, statistics
    # Each part has images of every device.
    divided = jax.tree.map(lambda leaf: leaf.reshape(-1, parts, *leaf.shape[1:]).swapaxes(0, 1), batch)

    def add(carry, numbered):
        statistics, slopes = carry
        statistics, (more, losses) = of_part(statistics, numbered)
        return (statistics, jax.tree.map(jnp.add, slopes, more)), losses

    start = statistics, jax.tree.map(jnp.zeros_like, variables["params"])
    (statistics, slopes), losses = jax.lax.scan(add, start, (jnp.arange(parts), divided))
    return jax.tree.map(lambda leaf: leaf / parts, slopes), jax.tree.map(jnp.mean, losses), statistics


def outputs(folder: Path, results: Results | None) -> dict[str, Path]:
    """The files and folders of the results of a run by name."""
    if results is None:
        return {}
    suffixes = {"best": results.suffix, "model": results.suffix, "results": ".json", "scores": ".csv"}
    suffixes |= dict.fromkeys(("curves", "detections", "mistakes"), ".png")
    return {name: folder / f"{name}{suffix}" for name, suffix in suffixes.items()}


def train(task: Task, folder: Path, options: Options | None = None) -> Run:
    """Trains a model. The folder gets checkpoints, the log and, if the task has `results`, these.

    All processes call this function together. The first one writes the results, and the others wait for it.
    """
    options = options or Options()
    devices, recipe = options.devices or jax.devices(), task.recipe
    if recipe.batch_size % (len(devices) * recipe.accumulate):
        raise StartError(
            f"batch_size must be a multiple of {len(devices)} devices times accumulate={recipe.accumulate}, got "
            f"{recipe.batch_size}"
        )
    paths, is_first = outputs(folder, task.results), jax.process_index() == 0
    on_devices = partial(on_own, devices, recipe.batch_size)
    # Processes on different hardware may compute different last bits of initial weights.
    variables = multihost_utils.broadcast_one_to_all(jax.device_get(task.variables))
    print(described_rates(recipe, variables["params"]))
    mesh = mesh_of(devices)
    whole = NamedSharding(mesh, P())
    make = jax.jit(partial(first_state, recipe), out_shardings=whole)

    def evaluate(state, steps, before):
        listed, scores = on_devices(task.validation.measure, state.best)
        print(f"step {steps}: {described(scores)}")
        if is_first and task.results:
            found = before | {str(steps): scores}
            if evaluations_since_best(found, task.validation.best) == 0:
                task.results.save(paths["best"], state.best)
            write_table(paths["scores"], [{"step": step, **found[step]} for step in found])
            draw_mistakes(paths["mistakes"], task.validation.dataset, listed)
        return scores

    with locked(folder), jax.set_mesh(mesh):
        shapes = make.eval_shape(variables)
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole), shapes)
        step = partial(train_step, task.loss, recipe)
        evaluation = (evaluate, task.validation.best) if task.validation else ()
        work = Work(step, partial(make, variables), like, lambda steps: map(shared, task.batches(steps)), *evaluation)
        run = fit(work, recipe, folder, options, [*paths.values()])
        if is_first and task.results:
            _write(task, paths, run, options, on_devices)
        multihost_utils.sync_global_devices("the results are written")
    return run


def _write(task, paths, run, options, on_devices):
    """Writes the results at the end of a run."""
    task.results.save(paths["model"], run.state.best)
    found = {"recipe": vars(task.recipe), "settings": options.settings, "waiting": run.log.waiting()}
    paths["results"].write_text(to_json(found | {"scores": run.scores}))
    names = [*task.validation.drawn, task.validation.best] if task.validation else []
    draw_curves(paths["curves"], run, list(dict.fromkeys(names)))
    if task.results.draw:
        try:
            on_devices(partial(task.results.draw, paths["detections"]), run.state.best)
        except ImageError as error:  # without validation data, of an image that training may have left out
            print(f"{paths['detections']} was not drawn: {error}")
