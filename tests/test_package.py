import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

import jax_dcn
from jax_dcn._primitive.jax_internals import TESTED_VERSIONS

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
    pythons = re.findall(
        r"^Programming Language :: Python :: (3\.\d+)", "\n".join(project["classifiers"]), re.MULTILINE
    )
    assert f"| Python | {', '.join(pythons[:-1])} and {pythons[-1]} |" in page
    assert re.findall(r'python: "(.*?)"', workflow) == [pythons[0], pythons[-1]]


def test_layers_are_imported_when_asked_for():
    script = (
        "import sys, jax_dcn; assert 'flax' not in sys.modules; print(jax_dcn.linen.DeformConv, jax_dcn.nnx.DeformConv)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
    with pytest.raises(AttributeError, match="'jax_dcn' has no attribute 'flex'"):
        _ = jax_dcn.flex


def test_source_without_kernels(tmp_path):
    shutil.copytree(ROOT / "jax_dcn", tmp_path / "jax_dcn", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    command = [sys.executable, "-S", "-c", f"import sys; sys.path += {sys.path}; import jax_dcn"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert f"ImportError: no compiled kernels in {tmp_path}" in process.stderr
