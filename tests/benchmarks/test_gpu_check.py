"""`make gpu-check` with stand-ins for its steps and for nvidia-smi."""

import json
import os
import re
import subprocess
import sys

import pytest

from benchmarks import gpu_check
from benchmarks.gpu_check import Step
from benchmarks.support.sources import ROOT

pytestmark = pytest.mark.platforms("cpu")

STEPS = {
    "right": Step(60, "echo some text for sm_$ARCHITECTURE"),
    "wrong": Step(60, "echo before; (exit 3); echo after"),
    "slow": Step(1, "echo begun; sleep 600"),
    "build": Step(60, "a_tool_that_is_not_installed"),
    "after": Step(60, "true"),
}


def check(monkeypatch, folder, *arguments):
    """The exit status, the results and the page."""
    (folder / "nvidia-smi").write_text("#!/bin/sh\necho Fast GPU H200, 9.0, 600.1, 1 MiB\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr(gpu_check, "STEPS", STEPS)
    status = gpu_check.main([*arguments, "--out", str(folder / "out")])
    (path,) = (folder / "out").glob("*-gpu-fast-gpu-h200.json")
    return status, json.loads(path.read_text())["steps"], path.with_suffix(".md").read_text()


def test_each_step_leaves_its_output_status_and_time(tmp_path, monkeypatch):
    status, steps, page = check(monkeypatch, tmp_path)
    assert status == 1
    assert {name: step["output"] for name, step in steps.items() if name != "build"} == {
        "right": "some text for sm_90\n",
        "wrong": "before\n",
        "slow": "begun\n",
    }
    assert [step["exit status"] for step in steps.values()] == [0, 3, 124, 127]  # nothing runs after a failed build
    assert "not found" in steps["build"]["output"]
    assert 1 <= steps["slow"]["seconds"] < 60
    assert re.search(r"right \| passed .*\n.*wrong \| \*\*failed\*\* with .* 3 .*\n.*slow \| stopped at its", page)


def test_chosen_steps(tmp_path, monkeypatch, capsys):
    status, steps, page = check(monkeypatch, tmp_path, "--only", "right,after")
    assert status == 0 and list(steps) == ["right", "after"] and "some text for sm_90" in page
    with pytest.raises(SystemExit):
        gpu_check.main(["--only", "right,left"])
    assert "no such step: left; there are right, wrong" in capsys.readouterr().err


def test_it_starts_where_nothing_is_installed():
    """Without a GPU there may be no jax, and before the build there is no module of jax_dcn."""
    absent = "import sys; sys.modules |= dict.fromkeys(['jax', 'jax_dcn', 'numpy', 'pytest']); "
    start = "from benchmarks.gpu_check import main; sys.exit(main(['--only', 'facts']))"
    environment = os.environ | {"PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", absent + start]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert "Skipped: no NVIDIA GPU here" in result.stdout, result.stderr


def test_the_scripts_are_bash_and_their_tests_exist():
    for step in gpu_check.STEPS.values():
        subprocess.run(["bash", "-n"], input=step.script, text=True, check=True)
    for test in gpu_check.TESTS:
        path, *names = test.split("::")
        assert all(f"def {name}(" in (ROOT / path).read_text() for name in names), test
    assert sum(step.seconds for step in gpu_check.STEPS.values()) < 600
