"""How well the tasks of the fused CPU kernels occupy threads."""

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks import cpu_tasks
from benchmarks.measurements.deform_conv import Shape
from jax_dcn._operators.deform_conv.plan import INSTRUCTIONS

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.skipif(INSTRUCTIONS == "portable", reason="without AVX2 the im2col path runs"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
]

# Slices of 64 channels, and 8 tiles of 8 x 21 pixels for the gradients.
SHAPE = Shape(1, 32, 42, 256, 8)


def speedups(pass_, threads, **changed):
    return cpu_tasks.simulate(SHAPE._replace(**changed), "float32", pass_, threads).speedups


def test_tasks_that_share_no_offset_group_are_independent():
    assert speedups("gradients", (1, 2, 3, 4, 8), offset_groups=4) == pytest.approx((1, 2, 2, 4, 4))


def test_slices_of_an_offset_group_follow_each_other_tile_by_tile():
    tiles, slices = 8, 4
    speedup = tiles * slices / (tiles + slices - 1)
    assert speedups("gradients", (1, 4, 8)) == pytest.approx((1, speedup, speedup))


def test_gradients_without_those_of_positions_do_not_wait(monkeypatch):
    monkeypatch.setattr(cpu_tasks, "fused_names", lambda *_: {"x", "weight"})
    assert speedups("gradients", (4,)) == pytest.approx((4,))


def test_threads_take_the_tiles_of_the_forward():
    forward = cpu_tasks.simulate(SHAPE, "float32", "forward", (1, 2, 64))
    assert forward.tasks == forward.slots >= 8
    assert forward.speedups[:2] == pytest.approx((1, 2))
    assert forward.speedups[2] == pytest.approx(forward.tasks)


def test_calls_of_the_plain_path_are_not_simulated():
    few = SHAPE._replace(height=8)
    assert cpu_tasks.simulate(few, "float32", "forward") is None
    assert cpu_tasks.simulate(few, "float32", "gradients") is None


def test_the_page_has_both(tmp_path, monkeypatch):
    is_measured = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1
    monkeypatch.setattr(cpu_tasks, "MEASURED", {"A": SHAPE})
    monkeypatch.setattr(cpu_tasks, "DTYPES", ("float32",))
    monkeypatch.setattr(cpu_tasks, "process_on", lambda _: ThreadPoolExecutor(1))  # starting processes takes seconds
    cpu_tasks.main(["--rounds", str(int(is_measured)), "--out", str(tmp_path)])
    (page,) = tmp_path.iterdir()
    assert page.name.endswith("-cpu-tasks.md")
    text = page.read_text()
    assert re.search(r"\| G +\| float32 +\| 16 +\| \d+ +\| 2\.00 ", text)
    assert text.count("| G ") == 6
    assert ("one thread, ms" in text) == is_measured
