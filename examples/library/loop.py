"""The training loop of all detectors: progress, losses and times, and checkpoints to resume from."""

import contextlib
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.experimental import multihost_utils
from tqdm import tqdm

from .checkpoints import Checkpoints, SaveError, Scores, StartError
from .files import delete, to_json

Batch, Step = TypeVar("Batch"), TypeVar("Step")
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
    changeable: Sequence[str] = (),
    evaluate: Callable[[Any, int, Scores], dict[str, float]] | None = None,
    best: str | None = None,
    patience: int | None = None,
    log: Path | None = None,
    outputs: Sequence[Path] = (),
    stop_after: int | None = None,
    title: str = "training",
) -> Run:
    """Apply `step`, which returns the new state and scalars with "loss" among them, to the batches of all steps.

    batches: takes the numbers of the steps that remain.
    recipe: a dataclass with `steps` and `checkpoint_every`, among others; settings: what else decides the result, such
    as the data. A run that is resumed must have the same, except for those in `changeable`.
    resume: continue from the newest checkpoint in `directory`, if any, as if never interrupted. Otherwise there must be
    none, and neither `outputs` nor `log`, or `overwrite` deletes all of them.
    evaluate: takes a state, which has been saved, the number of its steps and all earlier scores; called every
    `recipe.evaluate_every` steps and after the last.
    patience: end the run when the score `best` has not risen for that many evaluations.
    log: a file that gets what each step measured, one JSON object a line.
    outputs: files and folders with the results of the run, which the caller writes.
    stop_after: stop after that many steps, like an interruption.

    A checkpoint has finite numbers only, and stays until the next one is complete. Ctrl-C, SIGTERM and numbers that are
    not finite end the run with SystemExit; its message, or a note of any other error, says what `resume` does then.
    """
    asked = asdict(recipe) | dict(settings or {})
    changeable = (*CHANGEABLE, *getattr(recipe, "changeable", ()), *changeable)
    with (
        Checkpoints(directory, recipe.checkpoint_every, asked, changeable) as checkpoints,
        _interruption() as interrupted,
    ):
        of_another_run = [path for path in (*outputs, *([log] if log and not resume else [])) if path.exists()]
        if checkpoints.step is not None and resume:
            state, history, scores = checkpoints.restore(start.shapes)
            if len(history) > recipe.steps:
                raise StartError(f"--steps must be at least the {len(history)} that are saved, got {recipe.steps}")
        elif overwrite or (checkpoints.step is None and not of_another_run):
            if resume:
                print(f"{directory} has no checkpoints; the run starts from its first step.")
            checkpoints.clear()
            for path in of_another_run if jax.process_index() == 0 else ():
                delete(path)
            state, history, scores = start.make(), [], {}
        elif checkpoints.step is not None:
            raise StartError(f"{directory} has checkpoints of a run: resume it (--resume), or overwrite it")
        else:
            found = ", ".join(map(str, of_another_run))
            raise StartError(f"there are results of another run: {found}. Move or overwrite (--overwrite) them")
        last = min(recipe.steps, stop_after or recipe.steps)
        remaining = range(len(history), last)
        silent = jax.process_index() > 0
        progress = tqdm(remaining, title, last, initial=remaining.start, mininterval=1, disable=silent)
        log = None if silent else log

        def is_exhausted():
            return patience is not None and evaluations_since_best(scores, best) >= patience

        def ends():
            """Saves and evaluates the state when it is time; returns whether the run ends with it."""
            count = len(history)
            is_due = evaluate and (count == recipe.steps or count % recipe.evaluate_every == 0)
            if is_due and str(count) not in scores and not interrupted():
                checkpoints.save(state, history)
                scores[str(count)] = evaluate(state, count, dict(scores))
                checkpoints.save_scores(scores)
            stops = interrupted() or count >= last
            if stops or checkpoints.is_due(count):
                checkpoints.save(state, history)
            return stops or is_exhausted()

        try:
            if log and (history or log.exists()):
                _write_log(log, history, 1, "w")
            is_over = bool(history) and ends()
            waited_from = time.perf_counter()
            for batch in () if is_over else batches(remaining):
                began = time.perf_counter()
                new_state, measured = step(state, batch)
                found = {name: float(value) for name, value in jax.device_get(measured).items()}
                ended = time.perf_counter()
                found |= {"milliseconds": 1e3 * (ended - began), "waited": 1e3 * (began - waited_from)}
                number = len(history) + 1
                is_finite = all(map(math.isfinite, found.values()))
                if is_finite:
                    state = new_state
                    history.append(found)
                if log:
                    _write_log(log, [found], number, "a")
                if not is_finite:
                    raise SystemExit(f"{_explosion(found, history)} {checkpoints.resumption}")
                shown = {name: f"{found[name]:.3g}" for name in ("loss", "rate") if name in found}
                progress.set_postfix(shown, refresh=False)
                progress.update()
                if ends():
                    break
                waited_from = time.perf_counter()
        except Exception as error:
            # Several processes can only save together.
            if jax.process_count() == 1 and not isinstance(error, SaveError):
                with contextlib.suppress(Exception, SystemExit):  # also if the step has deleted its state
                    checkpoints.save(state, history)
            error.add_note(checkpoints.resumption)
            raise
        finally:
            progress.close()
    if len(history) < last and not is_exhausted():
        raise SystemExit(f"Interrupted after step {len(history)}, which is saved. Continue with --resume.")
    return Run(state, history, scores)


def evaluations_since_best(scores: Scores, name: str) -> int:
    """How many evaluations followed the first one with the highest score of this name. NaN is below all numbers.

    >>> evaluations_since_best({"10": {"AP": 0.1}, "20": {"AP": 0.3}, "30": {"AP": 0.3}}, "AP")
    1
    """
    found = [-math.inf if math.isnan(one[name]) else one[name] for one in scores.values()]
    return len(found) - 1 - found.index(max(found)) if found else 0


def ahead(make: Callable[[Step], Batch], steps: Iterable[Step], workers: int = 1) -> Iterator[Batch]:
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
    """The ids that are this process's share, `own_share(size)` at a time, and what was loaded for them, stacked.

    The last batch is filled up with copies of its first example.
    """
    ids, size = ids[jax.process_index() :: jax.process_count()], own_share(size)

    def batch(number):
        chosen = ids[number * size : (number + 1) * size]
        found = [load(one) for one in chosen]
        return chosen, stack(found + found[:1] * (size - len(found)))

    return ahead(batch, range(-(-len(ids) // size)), workers)


def own_share(size: int) -> int:
    """How many of `size` images in a batch of an evaluation each process has, at least one."""
    return max(size // jax.process_count(), 1)


def _explosion(found, history):
    """Which numbers of a step are not finite, and what they were in the step before."""
    names = [name for name, value in found.items() if not math.isfinite(value)]

    def listed(step):
        return ", ".join(f"{name} {step[name]:.4g}" for name in names)

    before = f" In step {len(history)} they were {listed(history[-1])}." if history else ""
    return f"Step {len(history) + 1} measured numbers that are not finite: {listed(found)}.{before}"


def _write_log(path, history, first, mode):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.writelines(to_json({"step": number, **step}) + "\n" for number, step in enumerate(history, first))


@contextlib.contextmanager
def _interruption():
    """Within it, the first Ctrl-C or SIGTERM only makes the yielded function return True; the second one acts as usual.

    On several processes the function returns True on all of them, and all must call it together.
    """
    usual, caught = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}, []

    def remember(number, _):
        caught.append(number)
        signal.signal(number, usual[number])

    def is_interrupted():
        if jax.process_count() == 1:
            return bool(caught)
        return bool(multihost_utils.process_allgather(np.array(bool(caught))).any())

    if threading.current_thread() is not threading.main_thread():  # which alone receives signals
        yield is_interrupted
        return
    try:
        for number in usual:
            signal.signal(number, remember)
        yield is_interrupted
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
