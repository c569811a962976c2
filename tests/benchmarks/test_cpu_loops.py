"""How well the tasks of aggregation and pooling occupy threads of a CPU."""

import re
import shutil

import numpy as np
import pytest

from benchmarks import cpu_loops
from benchmarks.measurements import aggregation

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.thorough,  # it compiles all kernels
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
]


def test_tasks_are_divided_and_timed(tmp_path, monkeypatch):
    shape = aggregation.Window(1, 28, 4)
    operator = aggregation.DCNV3._replace(shapes={"W": shape})
    monkeypatch.setattr(cpu_loops, "FLAGS", [*cpu_loops.FLAGS, "-O1"])
    monkeypatch.setattr(cpu_loops, "OPERATORS", (operator,))
    monkeypatch.setattr(cpu_loops, "DTYPES", ("float32",))
    call = operator.implementations["jax_dcn"].prepare(operator.problem(shape, "float32"), False)
    with cpu_loops.recorded():
        recorded = operator.implementations["jax_dcn"].prepare(operator.problem(shape, "float32"), False)
        one, many = (cpu_loops.times(recorded, threads, 3) for threads in (1, 16))
        np.testing.assert_allclose(recorded()["y"], call()["y"], rtol=1e-5, atol=1e-6)
    assert one.tasks < many.tasks
    assert one.seconds / many.seconds > 4
    cpu_loops.main(["--repeats", "1", "--out", str(tmp_path)])
    (page,) = tmp_path.iterdir()
    assert len(re.findall(r"^\| W +\| float32", page.read_text(), re.MULTILINE)) == 2
