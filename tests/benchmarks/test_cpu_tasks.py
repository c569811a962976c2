"""How well the tasks of the fused CPU kernels occupy threads."""

import itertools
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from benchmarks import cpu_tasks
from benchmarks.measurements.deform_conv import Shape
from jax_dcn._operators.deform_conv.plan import INSTRUCTIONS

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.skipif(INSTRUCTIONS == "portable", reason="without AVX2 the im2col path runs"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
]

# Slices of 64 channels, and 22 tiles of 3 x 21 pixels for the gradients.
SHAPE = Shape(1, 33, 42, 256, 8)
MULTIPLY_ADD, COPY = (1, 0, 0), (0, 0, 1)


def speedups(pass_, costs, threads, **changed):
    one, *others = cpu_tasks.simulate(SHAPE._replace(**changed), "float32", pass_, costs, (1, *threads)).seconds
    return [one / seconds for seconds in others]


def test_tiles_wait_tap_by_tap_for_those_that_add_to_the_same_weight(monkeypatch):
    """Half of a tap's work adds to the weight, one tile after the other."""
    monkeypatch.setattr(cpu_tasks, "fused_names", lambda *_: {"x", "weight"})
    tiles, run, halves = 22, 5, 18  # tiles of a plane, those that add to one partial sum, and halves of a tile's work
    makespan = 1 + run + (halves - 2)  # the last tile of a run adds its first tap after those before it
    # The chains of the four slices do not wait for each other.
    assert speedups("gradients", MULTIPLY_ADD, (128,)) == pytest.approx([4 * tiles * halves / makespan])


def test_gradients_of_positions_hardly_wait():
    """Nothing is added to weights, and the slices of an offset group store one after another what costs nothing."""
    assert speedups("gradients", MULTIPLY_ADD, (2,)) == pytest.approx([2], rel=0.02)


def test_copying_is_divided_too(monkeypatch):
    monkeypatch.setattr(cpu_tasks, "fused_names", lambda *_: {"weight"})
    assert speedups("gradients", COPY, (2,)) == pytest.approx([2], rel=0.1)


def test_tiles_add_their_windows_one_after_the_other(monkeypatch):
    """In an image that is hardly larger than a window: two thirds of the copies of a window."""
    monkeypatch.setattr(cpu_tasks, "fused_names", lambda *_: {"x"})
    assert 1 < speedups("gradients", COPY, (64,), channels=64)[0] < 4


def test_memory_limits_many_threads():
    fast = cpu_tasks.simulate(SHAPE, "float32", "forward", np.array(MULTIPLY_ADD) * 1e-18, (1, 64)).seconds
    assert fast[0] / fast[1] == pytest.approx(cpu_tasks.MEMORY_BANDWIDTH / cpu_tasks.THREAD_BANDWIDTH)


def test_threads_take_the_tiles_of_the_forward():
    shape = SHAPE._replace(height=32)  # all tiles are as large
    tasks = cpu_tasks.simulate(shape, "float32", "forward", MULTIPLY_ADD, (1,)).tasks
    assert tasks >= 8
    assert speedups("forward", MULTIPLY_ADD, (2, 64), height=shape.height) == pytest.approx([2, tasks])


def test_costs_are_found_in_times_that_consist_of_them():
    costs = (3e-11, 4e-10, 1e-10)
    calls = itertools.product(cpu_tasks.MEASURED, cpu_tasks.DTYPES, cpu_tasks.PASSES)
    measured = {
        call: cpu_tasks.Measured(cpu_tasks.simulate(cpu_tasks.MEASURED[call[0]], *call[1:], costs, [1]).seconds[0], 2)
        for call in calls
    }
    for found in cpu_tasks.fitted_costs(measured, costs[2]).values():
        assert found == pytest.approx(costs)


def test_calls_of_the_im2col_path_are_not_simulated():
    narrow = SHAPE._replace(groups=256, features=256)
    assert cpu_tasks.simulate(narrow, "float32", "forward", MULTIPLY_ADD) is None
    assert cpu_tasks.simulate(narrow, "float32", "gradients", MULTIPLY_ADD) is None


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="two processors are needed"
)
def test_the_page_has_both(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_tasks, "MEASURED", {"A": SHAPE})
    monkeypatch.setattr(cpu_tasks, "DTYPES", ("float32",))
    monkeypatch.setattr(cpu_tasks, "process_on", lambda _: ThreadPoolExecutor(1))  # starting processes takes seconds
    cpu_tasks.main(["--rounds", "1", "--out", str(tmp_path)])
    (page,) = tmp_path.iterdir()
    assert page.name.endswith("-cpu-tasks.md")
    text = page.read_text()
    assert re.search(r"\| G +\| float32 +\| 16 +\| \d+ +\| (1\.9|2\.0)\d ", text)
    assert text.count("| G ") == 6
    assert "one thread, ms" in text
