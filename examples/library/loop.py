"""The training loop of all detectors: progress, losses and times, and checkpoints to resume from."""

import contextlib
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from .checkpoints import Checkpoints, SaveError, Scores, StartError
from .files import delete
from .measurements import Log, Measurements

# What a run that is resumed may have changed; a recipe can name more as its `changeable`.
CHANGEABLE = ("checkpoint_every", "accumulate")
BEHIND = 2  # steps that have been started while what the one before them measured is fetched


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
    """A finished training: the last state, the number of its steps, the scores of evaluations, and its log."""

    state: Any
    steps: int
    scores: Scores
    log: Log

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return self.log.column("loss")


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
    tensorboard: Path | None = None,
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
    log: the file of the `Log`; by default log.jsonl in `directory`. tensorboard: a folder, as of `Log`.
    outputs: files and folders with the results of the run, which the caller writes.
    stop_after: stop after that many steps, like an interruption.

    What a step measured is fetched while the next BEHIND steps run. A checkpoint has finite numbers only, and stays
    until the next one is complete. Ctrl-C, SIGTERM and numbers that are not finite end the run with SystemExit; its
    message, or a note of any other error, says what `resume` does then.
    """
    asked = asdict(recipe) | dict(settings or {})
    changeable = (*CHANGEABLE, *getattr(recipe, "changeable", ()), *changeable)
    with (
        Checkpoints(directory, recipe.checkpoint_every, asked, changeable) as checkpoints,
        _interruption() as interrupted,
    ):
        log = log or directory / "log.jsonl"
        of_another_run = [path for path in (*outputs, *(() if resume else (log,))) if path.exists()]
        if checkpoints.step is not None and resume:
            if checkpoints.step > recipe.steps:
                raise StartError(f"--steps must be at least the {checkpoints.step} that are saved, got {recipe.steps}")
            state, count, scores = checkpoints.restore(start.shapes)
        elif overwrite or (checkpoints.step is None and not of_another_run):
            if resume:
                print(f"{directory} has no checkpoints; the run starts from its first step.")
            checkpoints.clear()
            for path in of_another_run if jax.process_index() == 0 else ():
                delete(path)
            state, count, scores = start.make(), 0, {}
        elif checkpoints.step is not None:
            raise StartError(f"{directory} has checkpoints of a run: resume it (--resume), or overwrite it")
        else:
            found = ", ".join(map(str, of_another_run))
            raise StartError(f"there are results of another run: {found}. Move or overwrite (--overwrite) them")
        last = min(recipe.steps, stop_after or recipe.steps)
        history = Log(log, count, tensorboard)
        measurements = Measurements(
            history, checkpoints, title, range(count, last), getattr(recipe, "batch_size", None)
        )

        def is_due():
            return evaluate and (count == recipe.steps or count % recipe.evaluate_every == 0)

        def is_exhausted():
            return patience is not None and evaluations_since_best(scores, best) >= patience

        def ends():
            """Saves and evaluates the state when it is time; returns whether the run ends with it."""
            measurements.fetch(0)
            stops = interrupted.agreed()
            if is_due() and str(count) not in scores and not stops:
                checkpoints.save(state, count)
                scores[str(count)] = evaluate(state, count, dict(scores))
                checkpoints.save_scores(scores)
                history.draw(count, scores[str(count)])
                stops = interrupted.agreed()
            stops |= count >= last
            if stops or checkpoints.is_due(count):
                checkpoints.save(state, count)
            measurements.restart()
            return stops or is_exhausted()

        try:
            is_over = count > 0 and ends()
            for batch in () if is_over else measurements.timed(batches(range(count, last))):
                state, measured = step(state, batch)
                count += 1
                measurements.add(count, measured, interrupted.flag())
                is_point = is_due() or checkpoints.is_due(count) or count >= last
                is_caught = jax.process_count() == 1 and interrupted.caught
                if (is_point or is_caught or measurements.fetch(BEHIND)) and ends():
                    break
        except Exception as error:
            # Several processes can only save together.
            if jax.process_count() == 1 and not isinstance(error, SaveError):
                with contextlib.suppress(Exception, SystemExit):  # also if the step has deleted its state
                    measurements.fetch(0)
                    checkpoints.save(state, count)
            error.add_note(checkpoints.resumption)
            raise
        finally:
            measurements.close()
            history.close()
    if count < last and not is_exhausted():
        raise SystemExit(f"Interrupted after step {count}, which is saved. Continue with --resume.")
    return Run(state, count, scores, history)


def evaluations_since_best(scores: Scores, name: str) -> int:
    """How many evaluations followed the first one with the highest score of this name. NaN is below all numbers.

    >>> evaluations_since_best({"10": {"AP": 0.1}, "20": {"AP": 0.3}, "30": {"AP": 0.3}}, "AP")
    1
    """
    found = [-math.inf if math.isnan(one[name]) else one[name] for one in scores.values()]
    return len(found) - 1 - found.index(max(found)) if found else 0


class Interruption:
    """Whether Ctrl-C or SIGTERM has come, to any of several processes, which call its methods together."""

    def __init__(self) -> None:
        self.caught: list[int] = []

    def flag(self) -> Any:
        """A number that is positive if a signal has come; of several processes, an array that they compute together."""
        if jax.process_count() == 1:
            return len(self.caught)
        own = np.full(jax.local_device_count(), len(self.caught), np.int32)
        return _largest(jax.make_array_from_process_local_data(self._devices, own))

    @cached_property
    def _devices(self):
        return NamedSharding(jax.make_mesh((jax.device_count(),), ("all",), (AxisType.Auto,)), P("all"))

    def agreed(self) -> bool:
        """Whether a signal has come."""
        return bool(jax.device_get(self.flag()))


@jax.jit
def _largest(numbers):
    return jnp.max(numbers)


@contextlib.contextmanager
def _interruption() -> Iterator[Interruption]:
    """Within it, the first Ctrl-C or SIGTERM is only caught; the second one acts as usual."""
    usual, found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}, Interruption()

    def remember(number, _):
        found.caught.append(number)
        signal.signal(number, usual[number])

    if threading.current_thread() is not threading.main_thread():  # which alone receives signals
        yield found
        return
    try:
        for number in usual:
            signal.signal(number, remember)
        yield found
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
