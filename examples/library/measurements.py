"""What the steps of a training measure: fetched while later steps run, logged, and shown in a line of progress."""

import json
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
from tqdm import tqdm

from .checkpoints import Checkpoints, SaveError
from .files import to_json

Item = TypeVar("Item")


class Log:
    """A file with one JSON object for each step: what it measured by name, "step", "milliseconds" and "waited".

    "milliseconds" is the wall time from the end of the step before to that of this one. "waited" is how much of it the
    devices were idle because the batch was not ready. The first of several processes writes the file.
    """

    def __init__(self, path: Path, steps: int, tensorboard: Path | None = None):
        """Keeps only the first `steps` lines of a file that exists.

        tensorboard: a folder that gets the same numbers, and scores, for TensorBoard.
        """
        self.path = path
        self._board = None
        if jax.process_index() > 0:
            return
        if tensorboard:
            from tensorboardX import SummaryWriter

            self._board = SummaryWriter(str(tensorboard), purge_step=steps + 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and steps:
            with path.open("r+b") as file:
                for _ in range(steps):
                    file.readline()
                file.truncate()
        else:
            path.unlink(missing_ok=True)

    def write(self, step: int, found: Mapping[str, float]) -> None:
        """Adds a line. Raises SaveError if the operating system refuses it."""
        if jax.process_index() == 0:
            try:
                with self.path.open("a") as file:
                    file.write(to_json({"step": step, **found}) + "\n")
            except OSError as error:
                raise SaveError(f"step {step} cannot be written to the log: {error}") from error
        self.draw(step, found)

    def draw(self, step: int, scores: Mapping[str, float]) -> None:
        """Only adds numbers for TensorBoard."""
        for name, value in scores.items() if self._board else ():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Waits until all is written."""
        if self._board:
            self._board.close()

    def read(self) -> Iterator[dict[str, float]]:
        """The lines."""
        if self.path.exists():
            with self.path.open() as file:
                yield from map(json.loads, file)

    def column(self, name: str) -> list[float]:
        """The number with this name of each step."""
        return [line[name] for line in self.read()]

    def waiting(self) -> float:
        """The share of time in which the devices waited for data."""
        waited = total = 0.0
        for line in self.read():
            waited, total = waited + line["waited"], total + line["milliseconds"]
        return waited / max(total, 1e-9)


class Measurements:
    """What the steps have measured that was not fetched yet.

    steps: those that the run has to do. images: how many a step has, if that is known.
    """

    def __init__(self, log: Log, checkpoints: Checkpoints, title: str, steps: range, images: int | None):
        self._log, self._checkpoints, self._images = log, checkpoints, images
        self._pending: deque[tuple[int, Any, Any, float]] = deque()
        self._last: dict[str, float] = {}
        silent = jax.process_index() > 0
        self._progress = tqdm(steps, title, steps.stop, initial=steps.start, mininterval=1, disable=silent)
        self._waited = 0.0
        self.restart()

    def restart(self) -> None:
        """Leaves out of all times what happened since the last step."""
        self._ended = time.perf_counter()

    def timed(self, batches: Iterable[Item]) -> Iterator[Item]:
        """The batches, while the time that the devices wait for them is measured."""
        iterator = iter(batches)
        while True:
            asked = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            is_idle = all(_is_ready(measured) for _, measured, _, _ in self._pending)
            self._waited = time.perf_counter() - asked if is_idle else 0.0
            yield batch

    def add(self, step: int, measured: dict[str, jax.Array], flag: Any) -> None:
        """What a step that was started will measure, and a number that is positive if the run is to end."""
        self._pending.append((step, measured, flag, self._waited))

    def fetch(self, most: int) -> bool:
        """Fetches and logs what steps measured until at most `most` steps are left; whether the run is to end.

        Raises SystemExit if a number is not finite.
        """
        ends = False
        while len(self._pending) > most:
            step, measured, flag, waited = self._pending.popleft()
            measured, flag = jax.device_get((measured, flag))
            ended = time.perf_counter()
            seconds, self._ended = ended - self._ended, ended
            found = {name: float(value) for name, value in measured.items()}
            found |= {"milliseconds": 1e3 * seconds, "waited": 1e3 * min(waited, seconds)}
            self._log.write(step, found)
            if not all(map(math.isfinite, found.values())):
                raise SystemExit(f"{_explosion(step, found, self._last)} {self._checkpoints.resumption}")
            self._show(found, seconds)
            self._last, ends = found, ends or flag > 0
        return ends

    def close(self) -> None:
        """Ends the line of progress and the log."""
        self._progress.close()
        self._log.close()

    def _show(self, found: dict[str, float], seconds: float) -> None:
        shown = {name: f"{found[name]:.3g}" for name in ("loss", "rate") if name in found}
        if self._images:
            shown["images/s"] = f"{self._images / seconds:.3g}"
        if memory := (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use"):
            shown["GiB"] = f"{memory / 2**30:.1f}"
        self._progress.set_postfix(shown, refresh=False)
        self._progress.update()


def _is_ready(measured):
    return all(leaf.is_ready() for leaf in jax.tree.leaves(measured) if isinstance(leaf, jax.Array))


def _explosion(step, found, before):
    """Which numbers of a step are not finite, and what they were in the step before."""
    names = [name for name, value in found.items() if not math.isfinite(value)]

    def listed(of_step):
        return ", ".join(f"{name} {of_step[name]:.4g}" for name in names)

    earlier = f" In step {step - 1} they were {listed(before)}." if before else ""
    return f"Step {step} measured numbers that are not finite: {listed(found)}.{earlier}"
