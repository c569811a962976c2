"""The anchor-free example detector."""

import re

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal

pytest.importorskip("sklearn")
pytest.importorskip("pycocotools")
pytest.importorskip("matplotlib")

from examples.detector import demo
from examples.detector.losses import assign, loss
from examples.detector.model import Detector
from examples.digits_library import scenes
from examples.digits_library.backbone import locations
from examples.library.checkpoints import StartError, locked

TINY = {"classes": 10, "widths": (8, 8, 16, 16), "blocks": (1, 1, 1)}


def test_every_object_has_a_location_and_the_smallest_wins():
    cells = locations(64, 64)
    objects = np.array([[0, 0, 60, 60], [29, 29, 31, 31], [0, 0, 0, 0]], np.float32)
    chosen, found = map(np.asarray, jax.jit(assign)(cells, objects, np.array([3, 4, -1])))
    assert set(chosen[found]) == {0, 1}
    assert_array_equal(cells[found & (chosen == 1)], [[28, 28]])


def test_gradients_reach_new_layers():
    """The weights of both layers of a block start at zero."""
    batch = scenes.make_batch("train", 0, range(2), 64)
    model = Detector(**TINY, operator="dcnv4")
    params = jax.jit(model.init)(jax.random.key(0), batch.images)["params"]
    gradients = jax.jit(jax.grad(lambda params: loss(model, params, batch)))(params)["backbone"]["stage3_block0"]
    for conv in ("conv1", "conv2"):
        for name in ("value_proj", "offset_mask", "output_proj"):
            assert np.abs(gradients[conv]["conv"][name]["kernel"]).max() > 0, (conv, name)


def test_an_unknown_operator_is_an_error():
    with pytest.raises(ValueError, match="operator must be one of plain, deformable, dcnv3, dcnv4, got 'DCNv3'"):
        jax.eval_shape(Detector(**TINY, operator="DCNv3").init, jax.random.key(0), np.zeros((1, 32, 32, 3), np.uint8))


def test_the_demo(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "WIDTHS", TINY["widths"])
    monkeypatch.setattr(demo, "BLOCKS", TINY["blocks"])
    picture = tmp_path / "new" / "demo.png"
    with locked(picture.with_suffix("")), pytest.raises(StartError, match="another run"):
        demo.main(["--out", str(picture)])
    demo.main(["--steps", "1", "--batch-size", "1", "--validation-images", "2", "--out", str(picture)])
    said = capsys.readouterr().out
    assert re.search(r"^AP [\d.]+ %, AP50 [\d.]+ %, AP75 [\d.]+ %$", said, re.MULTILINE)
    assert str(picture) in said and picture.read_bytes().startswith(b"\x89PNG")
