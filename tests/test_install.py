"""cmake/install.py, which the Makefile runs: what it says where the package cannot be installed, and what it builds."""

import fcntl
import os
import pathlib
import runpy
import shutil
import subprocess
import sys
import types

import pytest

FILE = pathlib.Path(__file__).parents[1] / "cmake/install.py"
pytestmark = pytest.mark.platforms("cpu")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """The names of the program, in the folder of a project, with an empty PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    shutil.copy(FILE.parents[1] / "pyproject.toml", tmp_path)
    return types.SimpleNamespace(**runpy.run_path(str(FILE)))


def add_program(name, script):
    path = pathlib.Path("bin", name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def fail(*_, **__):
    raise OSError(30, "Read-only file system")


BAD_MACHINES = {
    "old Python": (sys, "version_info", (3, 10, 4), "Python 3.11 or newer is needed, and .* is 3.10.4"),
    "read-only checkout": (os, "makedirs", fail, "The folder .venv cannot be made in .*: Read-only file system"),
    "full disk": (shutil, "disk_usage", lambda _: types.SimpleNamespace(free=1e9), "needs 3 GB of free space"),
    "no compiler": (shutil, "which", lambda _: None, "A C.*17 compiler is needed, and none of .* is found"),
}


@pytest.mark.parametrize("machine", BAD_MACHINES)
def test_a_bad_machine_is_explained_before_anything_is_downloaded(install, machine, monkeypatch):
    add_program("c++", "")
    install.check_machine()
    module, name, value, message = BAD_MACHINES[machine]
    monkeypatch.setattr(module, name, value)
    with pytest.raises(SystemExit, match=message):
        install.check_machine()


@pytest.mark.parametrize("driver, gpus", [("580.65.06", True), ("550.54.14", False), ("", False)])
def test_cuda_is_built_for_a_gpu_only(install, driver, gpus, capsys):
    assert not install.has_gpu()  # without nvidia-smi
    add_program("nvidia-smi", f"echo {driver}")
    assert install.has_gpu() == gpus
    assert ("its driver is for CUDA 12" in capsys.readouterr().out) == driver.startswith("550")


@pytest.mark.parametrize(
    "printed, meaning",
    [
        ("ERROR: No matching distribution found for jax", "Is there a network"),
        ("OSError: [Errno 28] No space left on device", "The disk is full"),
        ("anything else", "for the reason above"),
    ],
)
def test_a_failed_installation_is_explained(install, printed, meaning, capsys):
    python = pathlib.Path(install.PYTHON)
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho '{printed}' >&2; exit 1\n")
    python.chmod(0o755)
    with pytest.raises(SystemExit, match=meaning):
        install.pip("jax")
    assert printed in capsys.readouterr().out


def test_two_installations_wait_for_each_other(tmp_path):
    """The second one says so."""
    (tmp_path / "cmake").mkdir()
    shutil.copy(FILE, tmp_path / "cmake")
    (tmp_path / ".venv").mkdir()
    with open(tmp_path / ".venv/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, tmp_path / "cmake/install.py", "tools"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "jax_dcn: Waiting for another installation in this folder.\n"
            process.kill()
