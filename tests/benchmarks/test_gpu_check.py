"""What `make gpu-check` makes of its steps; the steps themselves run where a GPU is."""

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from benchmarks import gpu_check

pytestmark = pytest.mark.platforms("cpu")

SOME_TESTS = """
import pytest

@pytest.fixture(autouse=True)
def backend(record_property, request):
    record_property("backend", request.param)

@pytest.mark.parametrize("backend", ["cpu", "cuda"], indirect=True)
@pytest.mark.parametrize("case", range(4))
def test(case, backend):
    if case == 1:
        pytest.skip("no reason")
    assert case != 2, "it is wrong"
"""


@pytest.fixture
def outcome(tmp_path):
    (tmp_path / "test_some.py").write_text(SOME_TESTS)
    results = tmp_path / "results.xml"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={results}", f"--rootdir={tmp_path}", str(tmp_path)]
    subprocess.run(command, capture_output=True, cwd=tmp_path)
    return gpu_check.read_tests(ElementTree.parse(results))


def test_outcomes_are_counted_by_backend(outcome):
    each = {"passed": 2, "skipped": 1, "failed": 1}
    assert outcome["backends"] == {"cpu": each, "cuda": each}
    assert outcome["reasons to skip"] == {"no reason": 2}
    assert set(outcome["failures"]) == {"test_some::test[2-cpu]", "test_some::test[2-cuda]"}
    assert all("it is wrong" in message for message in outcome["failures"].values())


def test_the_page_names_what_failed(outcome):
    step = {"ok": True, "seconds": 3, "stopped at its limit": False}
    gpu = {"name": "a GPU"}
    report = {"gpu": gpu, "date": "today", "seconds": 7, "build": step, "tests": step | outcome | {"ok": False}}
    page = gpu_check.page(report)
    assert "| build | passed | 3 |" in page
    assert "| tests | **failed** | 3 |" in page
    assert "| benchmark | not reached |  |" in page
    assert "| cuda | 2 | 1 | 1 |" in page
    assert "**failed** `test_some::test[2-cuda]`: AssertionError: it is wrong" in page


def test_a_step_is_stopped_at_its_limit():
    sleep = "import time; time.sleep(600)"
    assert gpu_check.run(sys.executable, "-c", sleep, limit=1)["stopped at its limit"]
    assert gpu_check.run(sys.executable, "-c", "", limit=600)["ok"]
    assert not gpu_check.run(sys.executable, "-c", "raise SystemExit(3)", limit=600)["ok"]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """`machine(line)`: one whose nvidia-smi writes the line, or fails; the steps of the check are recorded."""
    steps = []

    def run(*command, limit):
        steps.append((command, limit))
        return {"ok": "pytest" not in command, "seconds": 1, "stopped at its limit": False}

    def make(line):
        script = tmp_path / "nvidia-smi"
        script.write_text(f"#!/bin/sh\necho '{line}'\n" if line else "#!/bin/sh\nexit 9\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        monkeypatch.setattr(gpu_check, "run", run)
        monkeypatch.setattr(sys, "argv", ["gpu-check", "--out", str(tmp_path / "out")])
        return steps

    return make


def test_without_a_gpu_nothing_is_run(machine, capsys, tmp_path):
    steps = machine(None)
    assert gpu_check.main() == 0
    assert "Skipped: no NVIDIA GPU here" in capsys.readouterr().out
    assert not steps and not (tmp_path / "out").exists()


def test_on_a_gpu_all_steps_fit_the_time_and_are_written_down(machine, capsys, tmp_path):
    steps = machine("Fast GPU, 12.0, 600.1, 1 MiB")
    assert gpu_check.main() == 1  # its tests failed
    (build, _), _, (benchmark, _) = steps
    assert "-Ccmake.define.CMAKE_CUDA_ARCHITECTURES=120-real" in build
    assert "benchmarks" in benchmark
    assert sum(limit for _, limit in steps[:2]) + gpu_check.LEAST_SECONDS < gpu_check.MINUTES * 60
    (written,) = (tmp_path / "out").glob("*-gpu.json")
    assert json.loads(written.read_text())["gpu"]["name"] == "Fast GPU"
    assert written.with_suffix(".md").read_text() in capsys.readouterr().out
