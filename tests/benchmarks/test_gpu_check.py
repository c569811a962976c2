"""`make gpu-check`, rehearsed on a CPU with stand-ins for NVIDIA's tools, and without packages that may be absent."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.gpu_check import __main__ as gpu_check
from benchmarks.gpu_check import process, steps
from benchmarks.reports import gpu_check as report
from benchmarks.support import sources

pytestmark = pytest.mark.platforms("cpu")

ABSENT = ("pycocotools", "jax2onnx", "sphinx", "mypy")
NVIDIA_SMI = """#!/bin/sh
case "$1" in
-q) echo "<log><cuda_version>13.0</cuda_version><gpu><mig_mode><current_mig>Disabled</current_mig></mig_mode>\
<max_clocks><sm_clock>1980 MHz</sm_clock></max_clocks></gpu></log>" ;;
*clocks.sm) echo "1755 MHz" ;;
*) echo "Fast GPU H200, 9.0, 600.1, 1 MiB" ;;
esac
"""
NCU = """#!/bin/sh
while [ "$1" != "$PYTHON" ]; do shift; done
"$@" || exit
echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
echo '"0","void dcn::SortBinsKernel<int>(int)","Duration","us","61.5"'
echo '"0","void dcn::SortBinsKernel<int>(int)","Some Metric","","2"'
"""
LAUNCHES = """#!/bin/sh
echo "every launch is done"
"""
SANITIZER = """#!/bin/sh
"$5" || exit
case "$2" in
racecheck) echo "RACECHECK SUMMARY: 1 hazard displayed" ;;
*) echo "ERROR SUMMARY: 0 errors" ;;
esac
"""


def lines_of(page):
    """The lines of a page, with the cells of its tables separated by one space."""
    return [" ".join(line.split()) for line in page.splitlines()]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that runs the check there, and returns its status, its results and the lines of its page."""
    programs = {"nvidia-smi": NVIDIA_SMI, "ncu": NCU, "compute-sanitizer": SANITIZER, "launches": LAUNCHES}
    for name, script in programs.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules |= dict.fromkeys({ABSENT})\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setattr(steps, "LAUNCHES", tmp_path / "launches")

    def check(*arguments):
        status = gpu_check.main([*arguments, "--out", str(tmp_path / "out")])
        path = max((tmp_path / "out").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        return status, json.loads(path.read_text()), lines_of(path.with_suffix(".md").read_text())

    return check


def test_the_rehearsal(machine, monkeypatch, tmp_path):
    """Everything but the build, with a few of the tests."""
    monkeypatch.setattr(steps, "TESTS", ("tests/roi_pool/test_align.py", "tests/test_platforms.py"))
    names = [name for name in steps.STEPS if name != "build"]
    status, results, lines = machine("--rehearse", "--only", ",".join(names))
    found = results["steps"]
    assert list(found) == names and results["rehearsed"] and results["gpu"]["name"] == "Fast GPU H200"
    assert {name: step["ok"] for name, step in found.items()} == dict.fromkeys(names, True) | {"sanitizers": False}
    assert status == 1 and len(list((tmp_path / "out").iterdir())) == 2
    assert found["facts"]["facts"]["CUDA of the driver"] == "13.0"
    assert "| MIG | Disabled |" in lines and "| memory clock | unknown |" in lines
    assert {row["call"] for row in found["smoke"]["rows"]} == set(found["smoke"]["about"]["calls"])
    assert {row["path"] for row in found["kernels"]["rows"]} == {"im2col", "fused"}
    assert all(row["with waiting"] > 0 and row["SM clock"] == "1755 MHz" for row in found["kernels"]["rows"])
    ratios = found["ratios"]["rows"]
    assert {row["case"] for row in ratios} == {"A16", "M3", "R2", "S1", "nms"}
    assert not any(row.get("refused") for row in ratios)
    assert [launch["case"] for launch in found["profile"]["launches"]] == list(steps.PROFILED)
    assert "| A:16 | `SortBinsKernel<int>` | Duration | 61.5 us |" in lines
    assert not any("Some Metric" in line for line in lines)  # it is in the JSON file
    tests = found["tests"]["rows"]
    assert {row["outcome"] for row in tests} == {"passed"} and "cpu" in {row["backend"] for row in tests}
    outcomes = {row["test"]: row["outcome"] for row in found["sanitizers"]["rows"]}
    assert outcomes == dict.fromkeys(steps.CLEAN, "passed") | {"racecheck": "failed"}


def test_the_tests_are_collected_without_absent_packages(machine):
    others = ["tests/benchmarks/test_detr_training.py", "tests/examples/detr", "tests/interop"]
    command = [*steps.PYTHON, "pytest", "-q", "--collect-only", *steps.TESTS]
    for options in (["--platform=cuda"], others):
        result = subprocess.run([*command, *options], capture_output=True, text=True, cwd=sources.ROOT)
        assert result.returncode == 0, result.stdout[-2000:]


@pytest.mark.parametrize(
    "device, calls, is_right, is_ok",
    [
        ("gpu", ["a"], True, True),
        ("cpu", ["a"], True, False),
        ("gpu", ["a", "b"], True, False),  # it was stopped before it had compared b
        ("gpu", ["a"], False, False),
    ],
)
def test_a_smoke_test_passes_if_it_compared_all_kernels_on_a_gpu(monkeypatch, device, calls, is_right, is_ok):
    rows = [{"platform": device, "calls": calls}, {"call": "a", "ok": is_right}]
    result = {"ok": False, "stopped at its limit": True, "rows": rows}
    monkeypatch.setattr(steps, "run", lambda *command, **options: result)
    step = steps.smoke(steps.Context({}, 1, False))
    assert step["ok"] == is_ok and (step.get("why") == "It ran on cpu, not on a gpu.") == (device == "cpu")


# Adds a row and a part of one to the file that the last argument names.
WRITE = """for last; do :; done; printf '{"number": 1}\\n{"num' >> ${last#--out=};"""


def test_a_command_that_is_stopped_leaves_its_rows(monkeypatch):
    monkeypatch.setattr(process, "GRACE", 1)
    result = process.run("sh", "-c", f"{WRITE} sleep 600", "sh", limit=4, rows_option="--out")
    assert result == {"ok": False, "stopped at its limit": True, "output": "", "rows": [{"number": 1}]}
    assert not process.run("sh", "-c", "exit 3", limit=600)["ok"]
    assert process.run("echo", "some text", limit=600)["output"] == "some text\n"


@pytest.mark.parametrize(
    "rows, is_ok",
    [
        ([("passed", "cuda")], True),
        ([("passed", "cuda"), ("failed", "cuda")], False),
        ([("skipped", "cuda"), ("passed", "reference on cuda")], False),
        ([], False),
    ],
)
def test_tests_pass_if_some_did_on_the_gpu_and_none_failed(monkeypatch, rows, is_ok):
    found = [{"test": "a", "outcome": outcome, "backend": backend, "message": "no GPU"} for outcome, backend in rows]
    result = {"ok": False, "stopped at its limit": True, "rows": found}
    monkeypatch.setattr(steps, "run", lambda *command, **options: result)
    assert steps.run_tests(steps.Context({}, 1, False))["ok"] == is_ok


def test_time_that_is_left_over_is_for_later_steps(machine, monkeypatch):
    clock, limits = [0.0], {}

    def step(name, share, seconds):
        def run(context):
            limits[name] = context.limit
            clock[0] += seconds
            if name == "wrong":
                raise KeyError("rows")
            return {"ok": name != "build", "output": "the last words"}

        return steps.Step(share, run)

    monkeypatch.setattr(gpu_check.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(gpu_check, "STEPS", {"wrong": step("wrong", 0.5, 50), "right": step("right", 0.2, 60)})
    assert machine("--minutes", "10")[1]["steps"]["wrong"] == {"ok": False, "why": "KeyError: 'rows'", "seconds": 50}
    assert limits == {"wrong": pytest.approx(480), "right": pytest.approx(550)}
    monkeypatch.setattr(gpu_check, "STEPS", {"build": step("build", 0.5, 1), "right": step("right", 0.5, 1)})
    status, results, _ = machine()
    assert status == 1 and list(results["steps"]) == ["build"]  # nothing runs after a build that failed
    assert "the last words" in results["steps"]["build"]["why"]


@pytest.mark.parametrize(
    "missing, why", [("launches", "build made no program"), ("compute-sanitizer", "not installed")]
)
def test_nothing_passes_without_a_sanitizer(machine, tmp_path, missing, why):
    (tmp_path / missing).unlink()
    assert machine("--only", "sanitizers")[0] == 1
    assert why in steps.sanitize(steps.Context({}, 1, False))["why"]


def test_earlier_reports_are_kept(machine, tmp_path):
    machine("--only", "facts")
    machine("--only", "facts")
    assert len(list((tmp_path / "out").iterdir())) == 4


def test_names_of_steps(capsys):
    assert list(steps.STEPS) == list(report.SECTIONS)
    assert sum(step.share for step in steps.STEPS.values()) <= 1
    with pytest.raises(SystemExit):
        gpu_check.main(["--only", "smoke,teste"])
    assert "no such step: teste; there are facts, build, smoke" in capsys.readouterr().err


def test_it_starts_where_nothing_is_installed():
    """Without a GPU there may be no jax, and before the build there is no module of jax_dcn."""
    absent = "import sys; sys.modules |= dict.fromkeys(['jax', 'jax_dcn', 'numpy', 'pytest']); "
    start = "from benchmarks.gpu_check.__main__ import main; sys.exit(main(['--only', 'facts']))"
    environment = os.environ | {"PATH": "/usr/bin:/bin"}
    result = subprocess.run(
        [sys.executable, "-c", absent + start], capture_output=True, text=True, cwd=sources.ROOT, env=environment
    )
    assert "Skipped: no NVIDIA GPU here" in result.stdout, result.stderr


def measured(case, dtype, computation, **milliseconds):
    """A row of ratios."""
    seconds = {name: {"median": 1e-3} for name in milliseconds}
    row = {"case": case, "shape": "a shape", "dtype": dtype, "pass": computation, "seconds": seconds}
    return row | {"device milliseconds": milliseconds, "without": {"PyTorch": "is not here"}}


def test_ratios_on_the_page():
    rows = [
        measured("A16", "bfloat16", "forward", jax_dcn=0.5, torchvision=2.0),
        measured("M3", "float32", "forward", jax_dcn=0.024),
        measured("M3", "float32", "forward + backward", jax_dcn=0.07),
    ]
    lines = lines_of("\n".join(report.of_ratios({"rows": rows})))
    assert "| A16 | bfloat16 | forward | torchvision | 2000 | 4.00 | 1000 | 1.00 |" in lines
    assert "| float32 | forward | 24 | 12.0 | 2.00 | 0.92 |" in lines
    assert "| float32 | backward | 46 | 92 | 0.50 | 0.38 |" in lines
    (note,) = [line for line in lines if line.startswith("- without PyTorch: is not here (A16 bfloat16 forward; M3")]
    assert note.endswith("M3 float32 forward + backward)")
