import operator
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import numpy
import pytest

import jax_dcn
from jax_dcn import _names
from jax_dcn._primitive.jax_internals import TESTED_VERSIONS
from tests.wheels import newer_architectures

ROOT = pathlib.Path(__file__).parents[1]
pytestmark = pytest.mark.platforms("cpu")


def test_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    latest = re.search(r"^## \[(.*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = re.search(r"^version: (.*)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert jax_dcn.__version__ == project["version"] == latest[1] == cited[1]


def test_supported_versions():
    """The package, its metadata, the page about support and the hosted tests name the same versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs/support.md").read_text()
    releases = re.findall(r"[\d.]+\d", TESTED_VERSIONS)
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    assert re.findall(r'jax: "(.*?)"', workflow) == [releases[0], releases[-1]]
    assert f"| jax | {TESTED_VERSIONS} |" in page
    classifiers = "\n".join(project["classifiers"])
    pythons = re.findall(r"^Programming Language :: Python :: (3\.\d+)", classifiers, re.MULTILINE)
    assert f"| Python | {', '.join(pythons[:-1])} and {pythons[-1]} |" in page
    assert re.findall(r'python: "(.*?)"', workflow) == [pythons[0], pythons[-1]]


ARCHITECTURES = re.findall(r"\d+", (ROOT / "cmake/Architectures.cmake").read_text().rpartition("set(")[2])


def test_every_list_of_architectures_is_that_of_cmake():
    """Those of the pages, and of the wrapper for nvcc 12.4, which knows no architecture after 90."""
    page = (ROOT / "docs/building.md").read_text()
    assert re.findall(r"^\| sm_(\d+) \|.*\| its machine code \|$", page, re.MULTILINE) == ARCHITECTURES
    names = [f"sm_{architecture}" for architecture in ARCHITECTURES]
    for text in (page, (ROOT / "docs/support.md").read_text()):
        assert f"for {', '.join(names[:-1])} and {names[-1]}" in text
    assert [name for name in ARCHITECTURES if int(name) > 90] == [*newer_architectures.ARCHITECTURES]


ALL_GPUS = ";".join(f"{architecture}-real" for architecture in ARCHITECTURES)


@pytest.mark.parametrize(
    "gpus, requested, expected",
    [
        ("9.0 9.0", "", "90-real;80-virtual (for the GPU of this machine)"),
        ("8.6 7.5 12.1", "", "86-real;120-real;80-virtual (for the GPU of this machine)"),
        ("13.0", "", "80-virtual (for the GPU of this machine)"),
        ("'library version: 580.65'", "", f"{ALL_GPUS};80-virtual (for all GPUs"),
        ("9.0", "80 120", "80-real;120-real;80-virtual (as requested)"),
    ],
)
def test_architectures_of_a_build(gpus, requested, expected, monkeypatch, tmp_path):
    """CMake's choice, by an nvidia-smi that finds `gpus`, and an nvcc that does not know all of them."""
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    known = " ".join(f"sm_{architecture}" for architecture in ["75", "86", *ARCHITECTURES])
    for name, lines in {"nvidia-smi": gpus, "nvcc": known}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '%s\\n' {lines}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "choice.cmake").write_text(
        f"set(JAX_DCN_CUDA ON)\nset(JAX_DCN_CUDA_CODE {requested})\nset(CMAKE_CUDA_COMPILER {tmp_path}/nvcc)\n"
        f"include({ROOT}/cmake/FindCudaCompiler.cmake)\n"
        'message("${JAX_DCN_CUDA_FLAGS} ${architectures} (${reason})")\n'
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDAARCHS", raising=False)
    done = subprocess.run(["cmake", "-P", tmp_path / "choice.cmake"], capture_output=True, text=True, check=True)
    code = "".join(f"sm_{name}," for name in re.findall(r"(\d+)-real", expected))
    assert f"=arch=compute_80,code=[{code}compute_80] {expected}" in done.stderr
    assert ("7.5" in done.stdout) == ("7.5" in gpus)


@pytest.mark.slow
def test_layers_are_imported_when_asked_for():
    script = "import sys, jax_dcn; assert 'flax' not in sys.modules; jax_dcn.linen.DeformConv, jax_dcn.nnx.DeformConv"
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
    with pytest.raises(AttributeError, match="'jax_dcn' has no attribute 'flex'"):
        _ = jax_dcn.flex


def test_names_of_layers_and_of_other_libraries_are_explained():
    assert set(_names.LAYERS) == set(jax_dcn.linen.__all__) == set(jax_dcn.nnx.__all__)
    transformers = "RTDetrV2MultiscaleDeformableAttention"
    for name in (*_names.LAYERS, *_names.FOREIGN, transformers):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'. Use jax_dcn") as raised:
            getattr(jax_dcn, name)
        for place in re.findall(r"jax_dcn\.(\w+(?:\.\w+)?)", str(raised.value)):
            assert callable(operator.attrgetter(place)(jax_dcn))
    with pytest.raises(AttributeError, match=r"^module 'jax_dcn' has no attribute 'roi_aling'$"):
        _ = jax_dcn.roi_aling


def run_in_source(folder, path):
    """Runs, with `python -m` in a source folder without compiled modules, a program that calls a kernel."""
    shutil.copytree(ROOT / "jax_dcn", folder / "jax_dcn", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (folder / "program.py").write_text(
        "import jax_dcn, numpy as np\n"
        "jax_dcn.roi_align(np.ones((1, 4, 4, 1)), np.array([[0.0, 0, 0, 2, 2]]), output_size=1)\n"
        "print(jax_dcn.__file__)\n"
    )
    # Without `site`, whose files of editable installations find the package of this repository.
    command = [sys.executable, "-S", "-m", "program"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_programs_in_the_source_folder_find_the_installed_kernels(tmp_path):
    process = run_in_source(tmp_path, sys.path)
    assert process.stdout.strip() == str(tmp_path / "jax_dcn" / "__init__.py"), process.stderr


def test_source_without_kernels(tmp_path):
    others = tmp_path / "installed"
    others.mkdir()
    for entry in pathlib.Path(numpy.__file__).parents[1].iterdir():
        if entry.name != "jax_dcn":
            (others / entry.name).symlink_to(entry)
    process = run_in_source(tmp_path / "source", [str(others)])
    assert f"ImportError: no compiled kernels in {tmp_path / 'source'}" in process.stderr
