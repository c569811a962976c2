"""The training loop of all detectors: progress, losses and times, and checkpoints to resume from."""

import contextlib
import json
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import struct
from tqdm import tqdm

Batch = TypeVar("Batch")
Scores = dict[str, dict[str, float]]  # what evaluations found, by the number of steps before them
# What a run that is resumed may have changed; a recipe can name more as its `changeable`.
CHANGEABLE = ("checkpoint_every",)


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
) -> tuple[State, dict[str, jax.Array]]:
    """One step of the optimiser: the new state, and the loss of the parameters before the step."""
    value, gradient = jax.value_and_grad(loss)(state.params)
    updates, optimiser_state = optimiser.update(gradient, state.optimiser, state.params)
    return State(state.step + 1, optax.apply_updates(state.params, updates), optimiser_state), {"loss": value}


class Run(NamedTuple):
    """A finished training: the last state and, of each step, all that it measured by name.

    "milliseconds" is the wall time of the step, and "waited" that before it, for its batch.
    """

    state: Any
    history: list[dict[str, float]]
    scores: Scores

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return [step["loss"] for step in self.history]

    @property
    def milliseconds(self) -> list[float]:
        """The wall time of each step."""
        return [step["milliseconds"] for step in self.history]

    @property
    def waiting(self) -> float:
        """The share of time in which the loop waited for data."""
        waited = sum(step["waited"] for step in self.history)
        return waited / max(waited + sum(self.milliseconds), 1e-9)


class StartError(ValueError):
    """Why a run cannot start with what was asked for."""


class Start(NamedTuple):
    """How a run starts: a function that makes its first state, and the shapes of that state."""

    make: Callable[[], Any]
    shapes: Any


def fit(
    step: Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]],
    start: Start,
    batches: Callable[[range], Iterator[Any]],
    recipe: Any,
    directory: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    evaluate: Callable[[Any, int, Scores], dict[str, float]] | None = None,
    log: Path | None = None,
    stop_after: int | None = None,
    title: str = "training",
) -> Run:
    """Apply `step`, which returns the new state and scalars with "loss" among them, to the batches of all steps.

    batches: takes the numbers of the steps that remain.
    recipe: a dataclass with `steps` and `checkpoint_every`, among others; settings: what else decides the result, such
    as the data. A run that is resumed must have the same.
    resume: continue from the newest checkpoint in `directory`, if any, as if never interrupted. Otherwise it must have
    none, or `overwrite` deletes them.
    evaluate: takes a state, the number of its steps and all earlier scores; called every `recipe.evaluate_every` steps
    and after the last.
    log: a file that gets what each step measured, one JSON object a line.
    stop_after: stop after that many steps, like an interruption. On Ctrl-C, the last state is saved.
    """
    options = ocp.CheckpointManagerOptions(max_to_keep=1, save_interval_steps=recipe.checkpoint_every, create=True)
    with ocp.CheckpointManager(directory.absolute(), options=options) as checkpoints, _interruption() as interrupted:
        state, history, scores = None, [], {}
        asked = json.loads(json.dumps(asdict(recipe) | dict(settings or {})))
        if checkpoints.latest_step() is not None:
            if resume:
                changeable = (*CHANGEABLE, *getattr(recipe, "changeable", ()))
                state, history, scores = _restore(checkpoints, start.shapes, asked, changeable)
            elif not overwrite:
                raise StartError(f"{directory} has checkpoints of a run: resume it (--resume), or overwrite it")
        if state is None:
            for old in checkpoints.all_steps():
                checkpoints.delete(old)
            state = start.make()
        last = min(recipe.steps, stop_after or recipe.steps)
        remaining = range(len(history), last)
        silent = jax.process_index() > 0
        progress = tqdm(remaining, title, last, initial=remaining.start, mininterval=1, disable=silent)
        log = None if silent else log
        if log:
            _write_log(log, history, 1, "w")
        waited_from = time.perf_counter()
        for batch in batches(remaining):
            began = time.perf_counter()
            state, measured = step(state, batch)
            found = {name: float(value) for name, value in jax.device_get(measured).items()}
            ended = time.perf_counter()
            found |= {"milliseconds": 1e3 * (ended - began), "waited": 1e3 * (began - waited_from)}
            history.append(found)
            shown = {name: f"{found[name]:.3g}" for name in ("loss", "rate") if name in found}
            progress.set_postfix(shown, refresh=False)
            progress.update()
            count = len(history)
            if log:
                _write_log(log, [found], count, "a")
            if evaluate and (count == recipe.steps or count % recipe.evaluate_every == 0):
                scores[str(count)] = evaluate(state, count, dict(scores))
            stops = interrupted() or count == last
            if stops or checkpoints.should_save(count):
                _save(checkpoints, asked, state, history, scores, force=stops)
            waited_from = time.perf_counter()
            if stops:
                break
        progress.close()
    if len(history) < last:
        raise SystemExit(f"Interrupted after step {len(history)}, which is saved. Continue with --resume.")
    return Run(state, history, scores)


def ahead(make: Callable[[int], Batch], steps: range, workers: int = 1) -> Iterator[Batch]:
    """`make(step)` of all steps; threads prepare the next ones, up to two for each, while the caller uses the last."""
    upcoming = iter(steps)
    with ThreadPoolExecutor(workers) as pool:
        waiting = deque(pool.submit(make, step) for step in islice(upcoming, 2 * workers))
        try:
            while waiting:
                current = waiting.popleft().result()
                waiting.extend(pool.submit(make, step) for step in islice(upcoming, 1))
                yield current
        finally:
            for future in waiting:
                future.cancel()


def filled_batches(
    ids: Sequence[int], size: int, load: Callable[[int], Any], stack: Callable[[list], Batch], workers: int
) -> Iterator[tuple[Sequence[int], Batch]]:
    """Ids, `size` at a time, and what was loaded for them, stacked.

    The last batch is filled up with copies of its first example.
    """

    def batch(number):
        chosen = ids[number * size : (number + 1) * size]
        found = [load(one) for one in chosen]
        return chosen, stack(found + found[:1] * (size - len(found)))

    return ahead(batch, range(-(-len(ids) // size)), workers)


def _write_log(path, history, first, mode):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.writelines(json.dumps({"step": number, **step}) + "\n" for number, step in enumerate(history, first))


@contextlib.contextmanager
def _interruption():
    """Within it, the first Ctrl-C only makes the yielded function return True; the second one raises as usual."""
    caught = []

    def remember(*_):
        caught.append(True)
        signal.signal(signal.SIGINT, usual)

    try:
        usual = signal.signal(signal.SIGINT, remember)
    except ValueError:  # only the main thread receives signals
        yield lambda: False
        return
    try:
        yield lambda: bool(caught)
    finally:
        signal.signal(signal.SIGINT, usual)


def _save(checkpoints, settings, state, history, scores, force):
    log = {"settings": settings, "history": history, "scores": scores}
    items = ocp.args.Composite(state=ocp.args.StandardSave(state), log=ocp.args.JsonSave(log))
    checkpoints.save(len(history), args=items, force=force)


def _restore(checkpoints, like, asked, changeable):
    """The state, the history and the scores of the newest checkpoint; raises if it was made with other settings."""
    step = checkpoints.latest_step()
    log = checkpoints.restore(step, args=ocp.args.Composite(log=ocp.args.JsonRestore())).log
    for name, value in log["settings"].items():
        if name not in changeable and value != asked.get(name):
            raise StartError(f"{name} must be {value} to go on from {checkpoints.directory}, got {asked.get(name)}")
    state = checkpoints.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(like))).state
    return state, log["history"], log["scores"]
