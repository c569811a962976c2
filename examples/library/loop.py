"""The training loop of all models: progress, losses and times, and checkpoints to resume from."""

import contextlib
import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from .checkpoints import Checkpoints, SaveError, Scores, StartError
from .files import delete
from .measurements import Log, Measurements
from .recipe import CHANGEABLE, Recipe

BEHIND = 2  # steps that have been started while what the one before them measured is fetched


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


class Work(NamedTuple):
    """What a run does.

    step: from a state and a batch to the new state and scalars with "loss" among them. make: makes the first state,
    which has these shapes. batches: takes the numbers of the steps that remain. evaluate: takes a state, which has been
    saved, the number of its steps and all earlier scores; it is called every `evaluate_every` steps and after the last.
    best: the score that decides which state is the best.
    """

    step: Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]]
    make: Callable[[], Any]
    shapes: Any
    batches: Callable[[range], Iterable[Any]]
    evaluate: Callable[[Any, int, Scores], dict[str, float]] | None = None
    best: str = ""


@dataclass(frozen=True)
class Options:
    """How a run is done.

    existing: whether another run in the folder is an error, goes on as if never interrupted, or is deleted. settings:
    what else than the recipe decides the result, such as the data. A run that goes on must have the same recipe and
    settings, except for those in `changeable` and in CHANGEABLE. patience: ends the run when the best score has not
    risen for that many evaluations. tensorboard: whether the folder gets all numbers for TensorBoard, too. devices:
    those that share each batch, by default those of all processes.
    """

    existing: Literal["refuse", "resume", "overwrite"] = "refuse"
    settings: Mapping[str, Any] = field(default_factory=dict)
    changeable: Sequence[str] = ()
    patience: int | None = None
    tensorboard: bool = False
    devices: Sequence[jax.Device] | None = None


def fit(work: Work, recipe: Recipe, folder: Path, options: Options | None = None, outputs: Sequence[Path] = ()) -> Run:
    """Does the steps of a recipe. The folder gets `checkpoints` and the files of a `Log`.

    outputs: files and folders with the results of a run, which the caller writes. A checkpoint has finite numbers only,
    and stays until the next one is complete. Ctrl-C, SIGTERM and numbers that are not finite end the run with
    SystemExit; its message, or a note of any other error, says what is saved.
    """
    options = options or Options()
    settings, changeable = asdict(recipe) | dict(options.settings), (*CHANGEABLE, *options.changeable)
    board = folder / "tensorboard"
    with (
        Checkpoints(folder / "checkpoints", recipe.checkpoint_every, settings, changeable) as checkpoints,
        _interruption() as interruption,
    ):
        others = outputs if options.existing == "resume" else [*outputs, folder / "log.jsonl", board]
        loop = _Loop(work, recipe, options, checkpoints, interruption)
        loop.begin([path for path in others if path.exists()])
        log = Log(folder / "log.jsonl", loop.count, board if options.tensorboard else None)
        loop.run(Measurements(log, checkpoints, range(loop.count, recipe.steps), recipe.batch_size))
    if loop.count < recipe.steps and not loop.is_exhausted():
        raise SystemExit(f"Interrupted after step {loop.count}, which is saved. Continue with --resume.")
    return Run(loop.state, loop.count, loop.scores, log)


class _Loop:
    """The steps of a run, and what happens between them; the state, the number of its steps, and all scores so far."""

    def __init__(self, work, recipe, options, checkpoints, interruption):
        self.work, self.recipe, self.options = work, recipe, options
        self.checkpoints, self.interruption = checkpoints, interruption
        self.state, self.count, self.scores = None, 0, {}

    def begin(self, of_another_run: Sequence[Path]) -> None:
        """Restores or makes the first state. Raises StartError, or deletes these paths, if they are not to stay."""
        checkpoints, existing = self.checkpoints, self.options.existing
        if checkpoints.step is not None and existing == "resume":
            if checkpoints.step > self.recipe.steps:
                must = f"--steps must be at least the {checkpoints.step} that are saved"
                raise StartError(f"{must}, got {self.recipe.steps}")
            self.state, self.count, self.scores = checkpoints.restore(self.work.shapes)
            return
        if existing != "overwrite" and checkpoints.step is not None:
            raise StartError(f"{checkpoints.folder} has checkpoints of a run: resume it (--resume), or overwrite it")
        if existing != "overwrite" and of_another_run:
            found = ", ".join(map(str, of_another_run))
            raise StartError(f"there are results of another run: {found}. Move or overwrite (--overwrite) them")
        if existing == "resume":
            print(f"{checkpoints.folder} has no checkpoints; the run starts from its first step.")
        checkpoints.clear()
        for path in of_another_run if jax.process_index() == 0 else ():
            delete(path)
        self.state = self.work.make()

    def run(self, measurements: Measurements) -> None:
        """Does the steps that remain. What one measured is fetched while the next BEHIND steps run."""
        try:
            is_over = self.count > 0 and self._ends(measurements)
            steps = range(self.count, self.recipe.steps)
            for batch in () if is_over else measurements.timed(self.work.batches(steps)):
                self.state, measured = self.work.step(self.state, batch)
                self.count += 1
                measurements.add(self.count, measured, self.interruption.flag())
                if (self._is_point() or measurements.fetch(BEHIND)) and self._ends(measurements):
                    break
        except Exception as error:
            # Several processes can only save together.
            if jax.process_count() == 1 and not isinstance(error, SaveError):
                with contextlib.suppress(Exception, SystemExit):  # also if the step has deleted its state
                    measurements.fetch(0)
                    self.checkpoints.save(self.state, self.count)
            error.add_note(self.checkpoints.resumption)
            raise
        finally:
            measurements.close()

    def is_exhausted(self) -> bool:
        """Whether the best score has not risen for too long."""
        patience = self.options.patience
        return patience is not None and evaluations_since_best(self.scores, self.work.best) >= patience

    def _is_due(self):
        is_last = self.count == self.recipe.steps
        return self.work.evaluate and (is_last or self.count % self.recipe.evaluate_every == 0)

    def _is_point(self):
        """Whether to wait for the step: to save or to evaluate its state, or because a signal has come."""
        is_last, is_caught = self.count == self.recipe.steps, jax.process_count() == 1 and self.interruption.caught
        return self._is_due() or self.checkpoints.is_due(self.count) or is_last or is_caught

    def _ends(self, measurements):
        """Saves and evaluates the state when it is time; returns whether the run ends with it."""
        measurements.fetch(0)
        stops = self.interruption.agreed()
        if self._is_due() and str(self.count) not in self.scores and not stops:
            self.checkpoints.save(self.state, self.count)
            found = self.work.evaluate(self.state, self.count, dict(self.scores))
            self.scores[str(self.count)] = found
            self.checkpoints.save_scores(self.scores)
            measurements.draw(self.count, found)
            stops = self.interruption.agreed()
        stops |= self.count == self.recipe.steps
        if stops or self.checkpoints.is_due(self.count):
            self.checkpoints.save(self.state, self.count)
        measurements.restart()
        return stops or self.is_exhausted()


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
