"""What the steps of a training measure: fetched while later steps run, logged, and shown in a line of progress."""

import contextlib
import csv
import json
import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
from tqdm import tqdm

from .checkpoints import Checkpoints, SaveError
from .files import replaced, to_json

Item = TypeVar("Item")
COMPILED = "/jax/core/compile/backend_compile_duration"  # an event of jax.monitoring
_events: Counter[str] = Counter()  # of this process
jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **_: _events.update([event]))


class Log:
    """A file with one JSON object for each step: what it measured by name, "step", "milliseconds" and "waited".

    "milliseconds" is the time from the end of the step before on the devices to that of this one, and "waited" for how
    many of these the devices were idle because the batch was not ready. A file with the ending .csv beside it has the
    same numbers, of those names that the first step has. The first of several processes writes the files.
    """

    def __init__(self, path: Path, steps: int, tensorboard: Path | None = None):
        """Keeps only the first `steps` steps of a file that exists, and prints if it lacks some of them.

        tensorboard: a folder that gets the same numbers, and scores, for TensorBoard.
        """
        self.path, self._table = path, path.with_suffix(".csv")
        self._columns: list[str] = []
        self._board = Board(tensorboard, steps) if tensorboard and jax.process_index() == 0 else None
        if jax.process_index() == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            numbered = [*self._numbered()]
            kept = [line for _, line in numbered if line is not None and line["step"] <= steps]
            if len(kept) < steps:
                damaged = [str(number) for number, line in numbered if line is None]
                lost = f" Lines that cannot be read are left out: {', '.join(damaged[:6])}." if damaged else ""
                print(f"{path} lacks {steps - len(kept)} of the {steps} steps that are saved.{lost}")
            if kept:
                with replaced(path) as file:
                    file.write_text("".join(f"{to_json(line)}\n" for line in kept))
            else:
                path.unlink(missing_ok=True)
            self._table.unlink(missing_ok=True)
            self._add_rows(kept)

    def write(self, step: int, found: Mapping[str, float]) -> None:
        """Adds a line. Raises SaveError if the operating system refuses it."""
        if jax.process_index() == 0:
            line = {"step": step, **found}
            with _naming_step(step), self.path.open("a") as file:
                file.write(to_json(line) + "\n")
                self._add_rows([line])
        if self._board:
            with _naming_step(step):
                self._board.write(step, found)

    def _add_rows(self, lines):
        if lines:
            with self._table.open("a", newline="") as file:
                self._columns = _write_rows(file, lines, self._columns)

    def draw(self, step: int, scores: Mapping[str, float]) -> None:
        """Only adds numbers for TensorBoard, and flushes them."""
        if self._board:
            with _naming_step(step):
                self._board.write(step, scores)
        self.flush(step)

    def flush(self, step: int) -> None:
        """Has all numbers for TensorBoard on the disk, up to those of a step."""
        if self._board:
            with _naming_step(step):
                self._board.flush()

    def close(self) -> None:
        """Closes the files that are kept open."""
        if self._board:
            self._board.close()

    def read(self) -> Iterator[dict[str, float]]:
        """The lines, without those that are damaged."""
        return (line for _, line in self._numbered() if line is not None)

    def _numbered(self):
        if self.path.exists():
            with self.path.open(errors="replace") as file:
                yield from enumerate(map(_parsed, file), 1)

    def column(self, name: str) -> list[float]:
        """The number with this name of each step."""
        return [line[name] for line in self.read()]

    def waiting(self) -> float:
        """The share of time in which the devices waited for data."""
        waited = total = 0.0
        for line in self.read():
            waited, total = waited + line["waited"], total + line["milliseconds"]
        return waited / max(total, 1e-9)


def write_table(path: Path, lines: Sequence[Mapping[str, float]]) -> None:
    """Writes a CSV file with the names of the first of these lines."""
    with replaced(path) as part, part.open("w", newline="") as file:
        _write_rows(file, lines)


def _write_rows(file, lines, columns=None):
    """Adds lines with these columns to a CSV file; by default those of the first line, whose names come before it."""
    writer = csv.DictWriter(file, columns or list(lines[0]), extrasaction="ignore", lineterminator="\n")
    if not columns:
        writer.writeheader()
    writer.writerows(lines)
    return writer.fieldnames


def _parsed(line):
    """The numbers in a line of a log, or nothing if it is damaged."""
    try:
        found = json.loads(line)
        complete = {"loss", "milliseconds", "waited"} <= found.keys() and found["step"] > 0
    except (ValueError, AttributeError, KeyError, TypeError):
        return None
    return found if complete and {type(value) for value in found.values()} <= {int, float, type(None)} else None


class Board:
    """A folder that TensorBoard reads. Errors of its file reach the caller of `write` or `flush`.

    The usual writers have a thread, which ends after an error and is then waited for without an end.
    """

    def __init__(self, folder: Path, steps: int):
        """What an earlier run wrote after these steps is not shown."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        folder.mkdir(parents=True, exist_ok=True)
        self._event, self._summary, self._writer = Event, Summary, EventsWriter(str(folder / "events"))
        self._add(steps + 1, session_log=SessionLog(status=SessionLog.START))
        self.flush()

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Adds numbers by name."""
        values = [self._summary.Value(tag=name, simple_value=number) for name, number in numbers.items()]
        self._add(step, summary=self._summary(value=values))

    def flush(self) -> None:
        """Has all numbers on the disk. It waits for the disk, so it is not for each step."""
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()

    def _add(self, step, **content):
        self._writer.write_event(self._event(wall_time=time.time(), step=step, **content))


@contextlib.contextmanager
def _naming_step(step):
    try:
        yield
    except OSError as error:
        raise SaveError(f"step {step} cannot be written to the log: {error}") from error


class _Pending(NamedTuple):
    """A step that was started: what it measures, whether the run is to end, and when the step ends on the devices."""

    step: int
    measured: dict[str, jax.Array]
    flag: Any
    waited: float
    ended: Future[float]


class Measurements:
    """What the steps have measured that was not fetched yet.

    steps: those that the run has to do. images: how many a step has.
    """

    def __init__(self, log: Log, checkpoints: Checkpoints, steps: range, images: int):
        self._log, self._checkpoints, self._images = log, checkpoints, images
        self._pending: deque[_Pending] = deque()
        self._last: dict[str, float] = {}
        silent = jax.process_index() > 0
        self._progress = tqdm(steps, "training", steps.stop, initial=steps.start, mininterval=1, disable=silent)
        self._waited, self._ended = 0.0, time.perf_counter()
        self._called, self._compilations = self._ended, _events[COMPILED]
        self._watcher = ThreadPoolExecutor(1)

    def restart(self) -> None:
        """Leaves out of all times what happened since the last step."""
        now = time.perf_counter()
        self._leave_out(now - self._ended)
        self._ended = now

    def timed(self, batches: Iterable[Item]) -> Iterator[Item]:
        """The batches, while the time that the devices wait for them is measured."""
        iterator = iter(batches)
        while True:
            idle_from = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            got = time.perf_counter()
            if self._pending:
                newest = self._pending[-1].ended
                idle_from = max(idle_from, newest.result()) if newest.done() else got
            self._waited = max(got - idle_from, 0.0)
            self._called, self._compilations = time.perf_counter(), _events[COMPILED]
            yield batch

    def add(self, step: int, measured: dict[str, jax.Array], flag: Any) -> None:
        """What a step that was started will measure, and a number that is positive if the run is to end."""
        if _events[COMPILED] > self._compilations:  # the first step with arrays of these shapes
            self._leave_out(time.perf_counter() - self._called)
        self._pending.append(_Pending(step, measured, flag, self._waited, self._watcher.submit(_end_of, measured)))

    def fetch(self, most: int) -> bool:
        """Fetches and logs what steps measured until at most `most` steps are left; whether the run is to end.

        Raises SystemExit if a number is not finite.
        """
        ends = False
        while len(self._pending) > most:
            one = self._pending.popleft()
            measured, flag = jax.device_get((one.measured, one.flag))
            seconds = one.ended.result() - self._ended
            self._ended += seconds
            found = {name: float(value) for name, value in measured.items()}
            found |= {"milliseconds": 1e3 * seconds, "waited": 1e3 * min(one.waited, seconds)}
            self._log.write(one.step, found)
            if not all(map(math.isfinite, found.values())):
                raise SystemExit(f"{_explosion(one.step, found, self._last)} {self._checkpoints.resumption}")
            self._show(found, seconds)
            self._last, ends = found, ends or flag > 0
            if not self._pending:
                self._log.flush(one.step)
        return ends

    def draw(self, step: int, scores: Mapping[str, float]) -> None:
        """Adds the scores of an evaluation to what the log draws."""
        self._log.draw(step, scores)

    def close(self) -> None:
        """Ends the line of progress, and closes the log."""
        self._watcher.shutdown(wait=False)
        self._progress.close()
        self._log.close()

    def _leave_out(self, seconds: float) -> None:
        """Has the line of progress not count so many seconds, so that the time that it says remains is without them."""
        if not self._progress.disable:
            self._progress.start_t += seconds
            self._progress.last_print_t += seconds

    def _show(self, found: dict[str, float], seconds: float) -> None:
        shown = {name: f"{found[name]:.3g}" for name in ("loss", "rate") if name in found}
        shown["images/s"] = f"{self._images / seconds:.3g}"
        if memory := (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use"):
            shown["GiB"] = f"{memory / 2**30:.1f}"
        self._progress.set_postfix(shown, refresh=False)
        self._progress.update()


def _end_of(measured):
    jax.block_until_ready(measured)
    return time.perf_counter()


def _explosion(step, found, before):
    """Which numbers of a step are not finite, and what they were in the step before."""
    names = [name for name, value in found.items() if not math.isfinite(value)]

    def listed(of_step):
        return ", ".join(f"{name} {of_step[name]:.4g}" for name in names)

    earlier = f" In step {step - 1} they were {listed(before)}." if before else ""
    return f"Step {step} measured numbers that are not finite: {listed(found)}.{earlier}"
