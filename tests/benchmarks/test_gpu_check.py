"""`make gpu-check` with steps that are simulated; the real steps need a GPU."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import gpu_check
from benchmarks.readers.junit import read_tests
from benchmarks.reports.gpu_check import page as page_of

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
    return read_tests(ElementTree.parse(results))


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
    page = page_of(report)
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


RESULTS = """<testsuites><testsuite>
  <testcase classname="test" name="cuda"><properties><property name="backend" value="{}"/></properties></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """`machine(line)`: a machine whose nvidia-smi prints the line, or fails. Steps are recorded and simulated."""
    steps = []

    def make(line, tested="cuda", refused=(), fails=()):
        def run(*command, limit):
            name = next(name for name in ("pip", "pytest", "benchmarks") if name in command)
            steps.append((name, command, limit))
            if name == "pytest":
                (path,) = (Path(word.removeprefix("--junitxml=")) for word in command if word.startswith("--junitxml="))
                path.write_text(RESULTS.format(tested))
            elif name == "benchmarks":
                folder = Path(command[command.index("--out") + 1])
                (folder / "results.json").write_text(json.dumps({"operators": [{"refused": dict(refused)}]}))
                (folder / "results.md").write_text("as tables")
                (folder / "plot.png").touch()
            return {"ok": name not in fails, "seconds": 1, "stopped at its limit": False}

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


GPU = "Fast GPU, 12.0, 600.1, 1 MiB"


def test_on_a_gpu_all_steps_fit_the_time_and_are_written_down(machine, capsys, tmp_path):
    steps = machine(GPU)
    assert gpu_check.main() == 0
    assert [name for name, *_ in steps] == ["pip", "pytest", "benchmarks"]
    assert "-Ccmake.define.CMAKE_CUDA_ARCHITECTURES=120-real" in steps[0][1]
    assert sum(limit for *_, limit in steps[:2]) + gpu_check.LEAST_SECONDS < gpu_check.MINUTES * 60
    (written,) = (tmp_path / "out").glob("*-gpu.json")
    assert json.loads(written.read_text())["gpu"]["name"] == "Fast GPU"
    assert written.with_suffix(".md").read_text() in capsys.readouterr().out
    assert "as tables" in written.with_suffix(".md").read_text()
    assert (tmp_path / "out" / "plot.png").exists()


@pytest.mark.parametrize(
    "what",
    [
        {"fails": ["pip"]},
        {"fails": ["pytest"]},
        {"tested": "cpu"},  # all tests of the GPU were skipped
        {"refused": {"jax_dcn": "MemoryError: no"}},
        {"refused": {"pure JAX": "differs from jax_dcn in y by 40%"}},
    ],
    ids=str,
)
def test_what_fails_the_check(machine, what):
    machine(GPU, **what)
    assert gpu_check.main() == 1


def test_a_contender_that_fails_or_a_limit_does_not_fail_the_check(machine):
    machine(GPU, refused={"torchvision": "MemoryError: no"}, fails=["benchmarks"])
    assert gpu_check.main() == 0
