"""An implementation of a detector in a process of its own, as its users run it.

In one process, a library's threads and memory change the times of another: beside PyTorch, a training step of jax_dcn
took up to a third longer than alone.
"""

from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

import jax
import numpy as np

from benchmarks.measurements.detectors import Prepared
from benchmarks.measurements.timing import Turns
from benchmarks.measurements.trace import traced

RUNS = 3  # that are profiled


class Description(NamedTuple):
    """What a process has prepared: the passes, and of `Prepared` what is no call."""

    passes: list[str]
    scores: np.ndarray | None
    first_step: dict[str, float] | None


class Process:
    """A process that has one implementation. `programs`: the folder in which it keeps compiled programs."""

    def __init__(self, programs: str):
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_keep_programs, initargs=(programs,))

    def prepare(self, implementation, *arguments) -> Future[Description]:
        return self._pool.submit(_prepare, implementation, *arguments)

    def turn(self, pass_: str) -> float:
        """The seconds of a call."""
        return self._pool.submit(_turn, pass_).result()

    def held(self, pass_: str) -> int | None:
        """The bytes of temporary arrays and results of a call."""
        return self._pool.submit(_held, pass_).result()

    def profile(self, pass_: str):
        """The kernels of each profiled run on a GPU."""
        return self._pool.submit(_profile, pass_).result()

    def end(self) -> None:
        self._pool.shutdown()


_prepared: Prepared
_turns: dict[str, Turns] = {}


def _keep_programs(folder):
    jax.config.update("jax_compilation_cache_dir", folder)


def _prepare(implementation, *arguments):
    global _prepared
    _prepared = implementation(*arguments)
    passes = [name for name in ("forward", "step") if getattr(_prepared, name)]
    return Description(passes, _prepared.scores, _prepared.first_step)


def _turn(pass_):
    if pass_ not in _turns:
        _turns[pass_] = Turns(getattr(_prepared, pass_))
    return _turns[pass_].next()


def _held(pass_):
    call = getattr(_prepared, pass_)
    return call.held(call)[1]


def _profile(pass_):
    return traced({"": getattr(_prepared, pass_)}, RUNS)[""]
