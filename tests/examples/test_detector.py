"""The anchor-free example detector, and the training that the examples share."""

import dataclasses
import json
from functools import partial

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("sklearn")
pytest.importorskip("pycocotools")
pytest.importorskip("orbax.checkpoint")

from examples.detector.__main__ import main
from examples.detector.losses import assign, loss
from examples.detector.model import Detector
from examples.digits_library import scenes
from examples.digits_library.backbone import locations
from examples.digits_library.train import Recipe, train, train_step

IMAGE_SIZE = 64
TINY = {"classes": 10, "widths": (8, 8, 16, 16), "blocks": (1, 1, 1)}
RECIPE = Recipe(steps=60, batch_size=4, learning_rate=1e-2, checkpoint_every=25)
MODEL = Detector(**TINY, operator="deformable")


def test_every_object_has_a_location_and_the_smallest_wins():
    cells = locations(64, 64)
    objects = np.array([[0, 0, 60, 60], [29, 29, 31, 31], [0, 0, 0, 0]], np.float32)
    chosen, found = map(np.asarray, jax.jit(assign)(cells, objects, np.array([3, 4, -1])))
    assert set(chosen[found]) == {0, 1}
    assert_array_equal(cells[found & (chosen == 1)], [[28, 28]])


@pytest.mark.thorough  # test_library.py has the same with a tiny model, and test_rfcn.py a run that learns
def test_a_run_learns_and_can_be_resumed(tmp_path):
    run = partial(train, MODEL, loss, image_size=IMAGE_SIZE)
    train_step.clear_cache()
    uninterrupted = run(RECIPE, 0, tmp_path / "uninterrupted")
    assert np.mean(uninterrupted.losses[-10:]) < 0.95 * np.mean(uninterrupted.losses[:10])
    block = uninterrupted.state.params["backbone"]["stage3_block0"]
    assert all(np.abs(block[conv]["conv"]["conv_offset"]["kernel"]).max() > 0 for conv in ("conv1", "conv2"))

    run(RECIPE, 0, tmp_path, stop_after=30)
    resumed = run(RECIPE, 0, tmp_path, resume=True)
    assert_allclose(resumed.losses, uninterrupted.losses, rtol=1e-5)
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-4, atol=1e-5), resumed.state, uninterrupted.state)
    assert train_step._cache_size() == 1

    finished = run(RECIPE, 0, tmp_path, resume=True)
    assert finished.losses == resumed.losses and finished.milliseconds == resumed.milliseconds
    jax.tree.map(assert_array_equal, finished.state, resumed.state)
    with pytest.raises(ValueError, match="steps must be"):
        run(dataclasses.replace(RECIPE, steps=99), 0, tmp_path, resume=True)


def test_gradients_reach_new_layers():
    """The weights of both layers of a block start at zero."""
    batch = scenes.make_batch("train", 0, range(2), IMAGE_SIZE)
    model = Detector(**TINY, operator="dcnv4")
    params = jax.jit(model.init)(jax.random.key(0), batch.images)["params"]
    gradients = jax.jit(jax.grad(lambda params: loss(model, params, batch)))(params)["backbone"]["stage3_block0"]
    for conv in ("conv1", "conv2"):
        for name in ("value_proj", "offset_mask", "output_proj"):
            assert np.abs(gradients[conv]["conv"][name]["kernel"]).max() > 0, (conv, name)


def test_an_unknown_operator_is_an_error():
    with pytest.raises(ValueError, match="operator must be one of plain, deformable, dcnv3, dcnv4, got 'DCNv3'"):
        jax.eval_shape(Detector(**TINY, operator="DCNv3").init, jax.random.key(0), np.zeros((1, 32, 32, 3), np.uint8))


@pytest.mark.thorough
def test_the_command_writes_table_json_and_pictures(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("examples.detector.__main__.Detector", partial(Detector, widths=(8, 8, 8, 8), blocks=(1, 1, 1)))
    few = ["--steps", "2", "--batch-size", "4", "--validation-images", "4"]
    main([*few, "--variants", "deformable", "dcnv3", "--out", str(tmp_path)])
    table = (tmp_path / "results.md").read_text()
    assert table in capsys.readouterr().out
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert [run["variant"] for run in runs] == ["deformable", "dcnv3"]
    assert all(f"| {run['variant']} " in table and run["dilation small"] > 0 for run in runs)
    for picture in ("detections.png", "sampling.png"):
        assert (tmp_path / picture).stat().st_size > 10_000
