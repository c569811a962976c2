"""The flow between two images, which gradient descent through `grid_sample` finds."""

import re

import pytest
from PIL import Image

pytest.importorskip("optax")
pytest.importorskip("matplotlib")

from examples import flow

pytestmark = pytest.mark.platforms("cpu")


def test_the_flow_is_found(tmp_path, capsys):
    flow.main(["--steps", "200", "--out", str(tmp_path / "flow.png")])
    printed = capsys.readouterr().out
    first, last = map(float, re.search(r"The loss fell from (\S+) to (\S+)\.\n", printed).groups())
    motion, error = map(float, re.search(r"flow, (\S+) pixels on average, is wrong by (\S+) pixels", printed).groups())
    assert last < first / 50 and error < 0.2 * motion
    with Image.open(tmp_path / "flow.png") as picture:
        assert len(picture.convert("RGB").getcolors(10**7)) > 50
