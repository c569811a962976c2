"""How well the tasks of aggregation and pooling occupy threads of a CPU, and that their results do not depend on it."""

import re

import numpy as np
import pytest

from benchmarks import cpu_loops
from benchmarks.measurements import aggregation, roi_pool

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.thorough,  # it compiles all kernels
    pytest.mark.skipif(cpu_loops.missing() != "", reason=cpu_loops.missing()),
]

CALLS = {
    "attention": (aggregation.ATTENTION, aggregation.Attention(1, ((16, 16), (8, 8)), queries=70)),
    "dcnv3": (aggregation.DCNV3, aggregation.Window(1, 28, 4)),
    "psroi_pool": (roi_pool.PSROI_POOL, roi_pool.Shape(2, 12, 17, 128, rois=90, points=2)),
    "roi_align": (roi_pool.ROI_ALIGN, roi_pool.Shape(1, 40, 34, 16, rois=90, points=2)),
}


@pytest.fixture(autouse=True)
def less_optimized(monkeypatch):
    monkeypatch.setattr(cpu_loops, "FLAGS", [*cpu_loops.FLAGS, "-O1"])


@pytest.mark.parametrize("name", CALLS)
def test_tasks_are_divided_and_results_stay(name):
    operator, shape = CALLS[name]
    with cpu_loops.recorded():
        call = operator.implementations["jax_dcn"].prepare(operator.problem(shape, "float32"), True)
        times, results = {}, {}
        for threads in (1, 64):
            times[threads] = cpu_loops.times(call, threads, 3)
            cpu_loops.library().StartRecording(threads)
            results[threads] = {key: np.asarray(array) for key, array in call().items()}
    assert times[1].tasks <= times[64].tasks
    assert times[1].seconds / times[64].seconds > 4
    for key, result in results[64].items():
        np.testing.assert_array_equal(result, results[1][key])


def test_the_page(tmp_path, monkeypatch):
    operator, shape = CALLS["dcnv3"]
    monkeypatch.setattr(cpu_loops, "OPERATORS", (operator._replace(shapes={"W": shape}),))
    monkeypatch.setattr(cpu_loops, "DTYPES", ("float32",))
    cpu_loops.main(["--repeats", "1", "--out", str(tmp_path)])
    (page,) = tmp_path.iterdir()
    assert len(re.findall(r"^\| W +\| float32", page.read_text(), re.MULTILINE)) == 2
