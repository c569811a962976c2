"""The checkpoints of a training: its newest state, its settings, and the scores of its evaluations.

Also the lock of the folder that a run writes to.
"""

import contextlib
import fcntl
import itertools
import json
import logging
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from .files import digest_of, digest_of_json, replaced, to_json

STATE = "SHA-256 of the state"  # among the settings; the format of arrays does not notice each byte that changes
Scores = dict[str, dict[str, float]]  # what evaluations found, by the number of steps before them


class StartError(ValueError):
    """Why a run cannot start with what was asked for."""


class SaveError(OSError):
    """Why a state cannot be saved, such as a full disk."""


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Keeps other runs out of a folder, until the process ends in whatever way. Raises StartError if one is there.

    Of several processes that train together, the first one has the lock.
    """
    if jax.process_index() > 0:
        yield
        return
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StartError(f"another run is writing to {out}: end it, or pass another --out") from error
        except OSError as error:  # of some network file systems
            print(f"{out} cannot be locked ({error.strerror}). No other run must write to it at the same time.")
        yield


class Checkpoints:
    """The folder of a run's checkpoints, a context manager. A checkpoint stays until the next one is complete.

    settings: what decides the results; a run that is restored must have the same, except for those in `changeable`.
    """

    def __init__(self, directory: Path, every: int, settings: Mapping[str, Any], changeable: Sequence[str]):
        options = ocp.CheckpointManagerOptions(
            max_to_keep=1,
            save_interval_steps=every,
            cleanup_tmp_directories=True,
            enable_async_checkpointing=False,  # so that errors of writing appear while the run can still report them
        )
        self.folder, self._manager = directory, ocp.CheckpointManager(directory.absolute(), options=options)
        self._settings, self._changeable = json.loads(json.dumps(settings)), changeable
        self._scores = directory / "scores.json"  # scores of a state are found after it is saved
        self.is_due = self._manager.should_save

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.close()

    @property
    def step(self) -> int | None:
        """The number of steps of the state that is saved, if any."""
        return self._manager.latest_step()

    @property
    def resumption(self) -> str:
        """What --resume does when a run has ended early."""
        return f"Step {self.step} is saved. Continue with --resume." if self.step else "No step is saved."

    def restore(self, like: Any) -> tuple[Any, int, Scores]:
        """The state, the number of its steps, and the scores.

        Prints settings that have changed. Raises StartError if a setting has changed that must not, or if the state,
        the settings or the scores cannot be read.
        """
        with self._explaining():
            before = dict(self._restored(settings=ocp.args.JsonRestore()))
            saved_digest = before.pop(STATE)
        for name in sorted(before | self._settings, key=lambda name: name in self._changeable):
            saved, asked = (settings.get(name, "nothing") for settings in (before, self._settings))
            if name not in self._changeable and saved != asked:
                raise StartError(f"{name} must be {saved} to go on from {self._manager.directory}, got {asked}")
            if saved != asked:
                print(f"{name} was {saved} until step {self.step}, and is {asked} from there on.")
        with self._explaining():
            state = self._restored(state=ocp.args.StandardRestore(like))
            if saved_digest != _digest_of_state(state):
                raise ValueError("the state that was read is not the one that was saved")
        try:
            scores = self._read_scores()
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise StartError(
                f"{self._scores} cannot be read ({error}). The best score of earlier evaluations is lost, the training "
                "is not. Put back a copy of this file, or delete it to go on"
            ) from error
        return state, self.step, scores

    def _restored(self, **item):
        (found,) = self._manager.restore(self.step, args=ocp.args.Composite(**item)).values()
        return found

    @contextlib.contextmanager
    def _explaining(self):
        try:
            with _only_raised():
                yield
        except (jax.errors.JaxRuntimeError, MemoryError):
            raise
        except Exception as error:  # orbax raises errors of many types
            *before, step = sorted(self._manager.all_steps())
            folder, cause = self._manager.directory / str(step), f"{type(error).__name__}: {_first_line(error)}"
            others = f"move it away to go on from step {before[-1]}" if before else "start again with --overwrite"
            raise StartError(
                f"step {step} cannot be restored from {folder} ({cause}). If files there are damaged, the training "
                f"up to this step is lost. Put back a copy of this folder, or {others}"
            ) from error

    def _read_scores(self):
        if not self._scores.exists():
            return {}
        content = json.loads(self._scores.read_text())
        scores = content["scores"]
        if content["SHA-256"] != digest_of_json(scores):
            raise ValueError("its SHA-256 is another one")
        nan = {None: math.nan}
        return {step: {name: nan.get(one, one) for name, one in found.items()} for step, found in scores.items()}

    def clear(self) -> None:
        """Deletes all checkpoints and scores."""
        for step in self._manager.all_steps():
            self._manager.delete(step)
        if jax.process_index() == 0:
            self._scores.unlink(missing_ok=True)

    def save(self, state: Any, steps: int) -> None:
        """Saves a state after these steps, if it is not yet saved. Ends the program if the state is not finite."""
        if (self.step or 0) == steps:
            return
        on_host = jax.device_get(state)
        trees = [getattr(on_host, "variables", {}), on_host]  # vectors of parameters have not got their names
        for path, leaf in itertools.chain.from_iterable(map(jax.tree_util.tree_leaves_with_path, trees)):
            if not np.isfinite(leaf).all():
                name = jax.tree_util.keystr(path, simple=True, separator=".")
                message = f"The state after step {steps} is not finite in {name}, and is not saved."
                raise SystemExit(f"{message} {self.resumption}")
        settings = self._settings | {STATE: _digest_of_state(on_host)}
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), settings=ocp.args.JsonSave(settings))
        try:
            with _only_raised():
                self._manager.save(steps, args=items, force=True)
        except (OSError, ValueError) as error:  # the latter from the library that writes arrays
            raise SaveError(f"step {steps} cannot be saved: {_first_line(error)}") from error

    def save_scores(self, scores: Scores) -> None:
        """Saves the scores of all evaluations."""
        if jax.process_index() == 0:
            with replaced(self._scores) as file:
                file.write_text(to_json({"SHA-256": digest_of_json(scores), "scores": scores}))


def _first_line(error):
    return re.split(r"\n| \[tensorstore_spec=| See full TensorStore details", str(error))[0]


def _digest_of_state(state):
    return digest_of(np.asarray(leaf).tobytes() for leaf in jax.device_get(jax.tree.leaves(state)))


@contextlib.contextmanager
def _only_raised() -> Iterator[None]:
    """Hides what orbax prints, for each array, about an error that it also raises."""
    loggers, usual = [logging.getLogger(name) for name in ("absl", "asyncio")], sys.unraisablehook
    for logger in loggers:
        logger.disabled = True
    sys.unraisablehook = lambda _: None
    yield
    # Not after an error: tasks that orbax has left print when they end, and the program ends, too.
    for logger in loggers:
        logger.disabled = False
    sys.unraisablehook = usual
