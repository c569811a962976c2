"""Batches that threads or processes prepare ahead of use."""

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from multiprocessing import resource_tracker
from typing import Any, TypeVar

import jax

Batch, Step = TypeVar("Batch"), TypeVar("Step")
ENDING = {signal.SIGINT, signal.SIGTERM}
GRACE = 30  # seconds for which a process goes on after SIGTERM


def ahead(
    make: Callable[[Step], Batch], steps: Iterable[Step], workers: int = 1, processes: bool = False
) -> Iterator[Batch]:
    """`make(step)` of all steps; threads prepare the next ones, up to two for each, while the caller uses the last.

    processes: whether they are processes, which do not share Python's lock; `make` and the steps must be picklable.
    """
    upcoming = iter(steps)
    with _processes(workers) if processes else ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[Batch]] = deque()
        try:
            with _signals_held() if processes else nullcontext():
                waiting.extend(pool.submit(make, step) for step in islice(upcoming, 2 * workers))
            while waiting:
                current = waiting.popleft().result()
                waiting.extend(pool.submit(make, step) for step in islice(upcoming, 1))
                yield current
        except BrokenProcessPool as error:
            raise ChildProcessError("a process that prepares batches ended, perhaps because memory ran out") from error
        finally:
            for future in waiting:
                future.cancel()


def _processes(count):
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin_process)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Signals that end programs wait, here and in processes that are started, which import for seconds."""
    resource_tracker.ensure_running()  # as starting a process does, which also lets signals through
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)


def _begin_process():
    """Leaves it to the process that trains when to end, and ends with it, however that ends.

    Clusters send SIGTERM to all processes, and the one that trains still needs batches, for a while.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _Daemon(target=lambda: (time.sleep(GRACE), os._exit(1))).start())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    trainer = multiprocessing.parent_process()
    _Daemon(target=lambda: (trainer.join(), os._exit(1))).start()


_Daemon = partial(threading.Thread, daemon=True)


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
