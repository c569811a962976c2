"""The commands of `make gpu-check`, on a CPU, and the times of kernels in a profile."""

from functools import partial
from pathlib import Path

import jax
import pytest

from benchmarks import gpu_ratios, kernel_times
from benchmarks.baselines import Call
from benchmarks.measurements import trace

pytestmark = pytest.mark.platforms("cpu")

TRACE = Path(__file__).with_name("trace.txtpb").read_text()


def test_kernels_belong_to_the_run_that_began_before_them(tmp_path):
    (tmp_path / "some.xplane.pb").write_bytes(jax.profiler.ProfileData.text_proto_to_serialized_xspace(TRACE))
    first, second = trace.kernels_of_runs(tmp_path, 2)
    assert first == {"dcn::XCotangentKernel<bfloat16, 8, float>": (pytest.approx(1.0), 2)}
    assert second == {"input_transpose_fusion": (pytest.approx(0.005), 1)}
    assert trace.total(first) == pytest.approx(1.0) and trace.total({}) is None
    assert trace.median([0.5, None, 0.25, 1.0]) == 0.5 and trace.median([None]) is None


def test_a_trace_names_the_runs_of_each_call():
    counts = dict.fromkeys("ab", 0)

    def call(name):
        counts[name] += 1

    runs = trace.traced({name: Call(partial(call, name), wait=lambda _: None) for name in counts}, 3)
    assert runs == {"a": [{}, {}, {}], "b": [{}, {}, {}]} and counts == {"a": 3, "b": 3}  # no GPU


def test_one_program_that_fails_leaves_the_others(monkeypatch):
    right = kernel_times.results

    def results(function, varied, options, *operands):
        if not varied:
            raise RuntimeError("a launch failed\nsomewhere")
        return right(function, varied, options, *operands)

    monkeypatch.setattr(kernel_times, "results", results)
    prepared = kernel_times.programs(["A:16"], is_small=True)["A:16"]
    rows = list(kernel_times.measure("A:16", prepared))
    assert [row.get("error") for row in rows] == ["RuntimeError: a launch failed", None]
    assert all(row["with waiting"] > 0 for row in rows if "error" not in row)


@pytest.mark.parametrize("command", [kernel_times, gpu_ratios], ids=lambda command: command.__name__)
def test_a_short_run(command, monkeypatch, capsys):
    """It prints a table whose lines have as many cells as its head."""
    for name in ("CASES", "REPEATS", "RUNS"):
        if value := getattr(command, name, None):
            monkeypatch.setattr(command, name, value[:1] if name == "CASES" else 1)
    assert command.main(["--small"]) == 0
    printed = capsys.readouterr().out
    table = [line.split(" | ") for line in printed.splitlines() if line.startswith("|")]
    assert len(table) > 2 and {len(line) for line in table} == {len(command.HEAD)}
