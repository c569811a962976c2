"""The notebook, which shows the layer of the start page."""

import json
import re
import tomllib

import numpy as np
import pytest
from matplotlib import pyplot

from tests.helpers.pages import ROOT

pytestmark = pytest.mark.platforms("cpu")

NOTEBOOK = ROOT / "examples/first_layer.ipynb"


def cells():
    """The source of each code cell. Those that install something are commands of the notebook, `%pip`."""
    notebook = json.loads(NOTEBOOK.read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_is_stored_without_results_and_installs_this_repository():
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None and not cell["metadata"]
    (command,) = [source for source in cells() if source.startswith("%")]
    path, extra = re.fullmatch(r'%pip install --quiet "(\S+)\[(\w+)\]" optax\n?', command).groups()
    project = NOTEBOOK.parent / path / "pyproject.toml"
    assert extra in tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    for target in re.findall(r"\]\(([^)#]+)", NOTEBOOK.read_text()):
        assert (NOTEBOOK.parent / target).exists(), target


@pytest.mark.thorough
def test_the_notebook_runs():
    names = {"__name__": "__main__"}
    for source in cells():
        if not source.startswith("%"):
            exec(compile(source, NOTEBOOK.name, "exec"), names)
    np.testing.assert_allclose(names["offset"].mean((0, 1, 2)), [1.5, -0.75], atol=0.01)
    assert names["loss"] < 1e-6
    assert names["axes"].collections
    pyplot.close("all")
