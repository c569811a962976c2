"""cmake/install.py, which the Makefile runs: what it says where the package cannot be installed, and what it builds."""

import os
import pathlib
import runpy
import shutil
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


def add_program(path, script):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def fail(*_, **__):
    raise OSError(30, "Read-only file system")


BAD_MACHINES = {
    "old Python": (sys, "version_info", (3, 10, 4), "Python 3.11 or newer is needed, and .* is 3.10.4"),
    "read-only checkout": (os, "makedirs", fail, "The folder .venv cannot be made in .*: Read-only file system"),
    "no compiler": (shutil, "which", lambda _: None, "A C.*17 compiler is needed, and none of .* is found"),
}


@pytest.mark.parametrize("machine", BAD_MACHINES)
def test_a_bad_machine_is_explained_before_anything_is_downloaded(install, machine, monkeypatch):
    add_program("bin/c++", "")
    install.check_machine()
    module, name, value, message = BAD_MACHINES[machine]
    monkeypatch.setattr(module, name, value)
    with pytest.raises(SystemExit, match=message):
        install.check_machine()


@pytest.mark.parametrize(
    "printed, is_used",
    [
        ("9.0, 580.65.06", True),
        ("7.5, 580.65.06\n12.0, 580.65.06", True),
        ("9.0, 550.54.14", False),
        ("7.5, 580.65.06", False),
        ("No devices were found", False),
        ("[N/A], [N/A]", False),
    ],
)
def test_cuda_is_built_for_a_gpu_only(install, printed, is_used, capsys):
    assert not install.find_gpu()  # without nvidia-smi
    add_program("bin/nvidia-smi", f"echo '{printed}'")
    assert install.find_gpu() == is_used
    assert ("The GPU is not used" in capsys.readouterr().out) == (printed[0].isdigit() and not is_used)


@pytest.mark.parametrize(
    "gpu, variable, kind", [(True, "", "WHEELS"), (True, "OFF", "OFF"), (False, "", "OFF"), (False, "WHEELS", "WHEELS")]
)
def test_the_package_is_built_as_the_machine_or_the_variable_says(install, gpu, variable, kind, monkeypatch):
    if gpu:
        add_program("bin/nvidia-smi", "echo 9.0, 580.65.06")
    monkeypatch.setenv("JAX_DCN_CUDA", variable)
    calls = []
    names = install.install_package.__globals__
    monkeypatch.setitem(names, "pip", lambda *arguments: calls.append(arguments))
    monkeypatch.setitem(names, "check_space", lambda _: None)
    install.install_package("JAX_DCN_WERROR=ON")
    packages, built = calls
    assert any("nvcc" in name for name in packages) == (kind == "WHEELS")
    assert ("jax[cuda13]" in packages) == (gpu and kind != "OFF")
    assert {f"JAX_DCN_CUDA={kind}", "JAX_DCN_WERROR=ON"} <= {name.rpartition("define.")[2] for name in built}
