"""R-FCN of digits: data, scores, losses and the command; and the options and docstrings of all examples."""

import doctest
import importlib
import json
import pkgutil
import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import examples
from examples.library.checkpoints import locked
from examples.library.command_line import Parser
from examples.library.training import first_state, train_step
from examples.rfcn import __main__ as command
from examples.rfcn import evaluate, losses, model, scenes
from examples.rfcn.backbone import locations
from examples.rfcn.losses import RECIPE, assign, task_of

TINY = partial(model.RFCN, widths=(8, 8, 16, 16), blocks=(1, 1, 1))


def test_examples_in_docstrings():
    """Those of `examples`, which pytest does not collect."""
    modules = [found.name for found in pkgutil.walk_packages(examples.__path__, "examples.")]
    results = [doctest.testmod(importlib.import_module(name)) for name in modules if not name.endswith("__main__")]
    assert sum(result.attempted for result in results) >= 15
    assert not any(result.failed for result in results)


def test_options_are_given_once_and_in_full(capsys):
    parser = Parser("train", "Train.")
    parser.add_argument("--out")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("words", nargs="*")
    assert parser.parse_args(["--resume", "--", "--resume"]).words == ["--resume"]
    for arguments, message in (
        (["--out", "a", "--out=b"], "--out must be given once, got it 2 times"),
        (["--resume", "--resume"], "--resume must be given once, got it 2 times"),
        (["--resum"], "unrecognized arguments: --resum"),
    ):
        with pytest.raises(SystemExit):
            parser.parse_args(arguments)
        assert message in capsys.readouterr().err


def test_no_digit_and_no_part_of_a_photograph_is_in_both_splits():
    train_split, validation = scenes.load_material("train"), scenes.load_material("validation")
    train_glyphs = {glyph.tobytes() for glyph in train_split.glyphs}
    assert not any(glyph.tobytes() in train_glyphs for glyph in validation.glyphs)
    assert len(train_split.glyphs) + len(validation.glyphs) == 1797
    for left, right in zip(train_split.photos, validation.photos, strict=True):
        assert left.shape[1] + right.shape[1] == 640


def test_boxes_are_tight(monkeypatch):
    """On a black background without fragments, each bright pixel is in a box, and each side of a box touches one."""
    monkeypatch.setattr(scenes, "BACKGROUND_BRIGHTNESS", 0)
    monkeypatch.setattr(scenes, "MIN_FRAGMENTS", 0)
    monkeypatch.setattr(scenes, "MAX_FRAGMENTS", 0)
    for index in range(10):
        image, all_boxes, labels = scenes.make_scene("train", 0, index)
        lit = image.max(-1) > 0
        outside = lit.copy()
        for x0, y0, x1, y1 in all_boxes[labels >= 0].astype(int):
            inside = lit[y0:y1, x0:x1]
            assert inside[0].any() and inside[-1].any() and inside[:, 0].any() and inside[:, -1].any()
            outside[y0:y1, x0:x1] = False
        assert not outside.any()


def test_perfect_predictions_have_an_average_precision_of_one():
    batch = scenes.make_batch("validation", 0, range(20))
    perfect = model.Detections(batch.boxes, (batch.labels >= 0).astype(np.float32), batch.labels)
    for found, expected in ((perfect, 1), (perfect._replace(boxes=batch.boxes + 200), 0)):
        assert_allclose(list(evaluate.average_precision([batch], [found]).values()), expected, atol=1e-6)
    with pytest.raises(ValueError, match="objects found in 0 must have finite scores and boxes"):
        evaluate.average_precision([batch], [perfect._replace(boxes=batch.boxes + np.nan)])


def test_every_object_has_a_location_and_the_smallest_wins():
    cells = locations(64, 64)
    objects = np.array([[0, 0, 60, 60], [29, 29, 31, 31], [0, 0, 0, 0]], np.float32)
    chosen, found = map(np.asarray, jax.jit(assign)(cells, objects, np.array([3, 4, -1])))
    assert set(chosen[found]) == {0, 1}
    assert_array_equal(cells[found & (chosen == 1)], [[28, 28]])


def test_proposals_are_suppressed_and_padded():
    """Two cells have the same box. The image of a region that is padding is -1."""
    box, other = [8.0, 8, 24, 24], [40.0, 8, 56, 30]
    found = model.propose(jnp.array([2.0, 1, 3]), jnp.array([box, box, other]))
    assert_array_equal(found.valid, np.arange(model.PROPOSALS) < 2)
    rois = model.as_rois(found)
    assert_array_equal(rois[:2], [[0, 40, 8, 55, 29], [0, 8, 8, 23, 23]])
    assert_array_equal(rois[2:, 0], -1)


def test_regions_learn_the_class_and_the_box_of_their_object(monkeypatch):
    """The second region has no object, because the second object is padding; the third region is padding."""
    monkeypatch.setattr(losses, "HARD_REGIONS", 3)
    boxes = jnp.array([[[8.0, 8, 24, 24], [40, 8, 56, 30]]])
    batch = scenes.Scenes(None, boxes, jnp.array([[3, -1]]))
    padded = jnp.concatenate([boxes, jnp.zeros((1, 1, 4))], 1)
    logits = jnp.zeros((1, 3, 11)).at[0, [0, 1], [3, 10]].set(20.0)
    found = model.Predictions(
        None, None, model.Boxes(padded, jnp.array([[True, True, False]])), logits, jnp.zeros((1, 3, 4))
    )
    assert_allclose(losses.region_loss(found, batch), 0, atol=1e-6)
    moved = found._replace(deltas=jnp.ones((1, 3, 4)))
    assert_allclose(losses.region_loss(moved, batch), 4 * 0.5 / 3, rtol=1e-5)
    confused = found._replace(logits=jnp.roll(logits, 1, -1))
    assert_allclose(losses.region_loss(confused, batch), 2 * 20 / 3, rtol=1e-3)


@pytest.mark.slow
def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "RFCN", TINY)
    for arguments, message in [(["--steps", "0"], "--steps: must be positive, got 0"), ([], "another run")]:
        with locked(tmp_path / "plain-0"), pytest.raises(SystemExit) as caught:
            command.main([*arguments, "--out", str(tmp_path)])
        assert message in f"{capsys.readouterr().err}{caught.value}"
    few = ["--steps", "1", "--batch-size", "1", "--validation-images", "2", "--seeds", "2"]
    command.main([*few, "--out", str(tmp_path)])
    said = capsys.readouterr().out
    with pytest.raises(SystemExit, match="or overwrite it"):
        command.main([*few, "--out", str(tmp_path)])
    assert re.search(r"^deformable-1: AP [\d.]+, AP50 [\d.]+, AP75 ", said, re.MULTILINE)
    assert re.search(r"^plain: AP [\d.]+ ± [\d.]+, AP50 ", said, re.MULTILINE)
    assert (tmp_path / "deformable-1.png").read_bytes().startswith(b"\x89PNG")
    assert [len(scores) for scores in json.loads((tmp_path / "results.json").read_text()).values()] == [2, 2]


@pytest.mark.slow
def test_training_compiles_one_step_and_learns_a_batch():
    train_step.clear_cache()
    task = task_of(TINY(10), replace(RECIPE, steps=40, learning_rate=1e-2, warmup=2))
    batch, found = scenes.make_batch("train", 0, range(4), 64), []
    state = first_state(task.recipe, task.variables)
    for _ in range(task.recipe.steps):
        state, measured = train_step(task.loss, task.recipe, state, batch)
        found.append(measured["loss"])
    assert train_step._cache_size() == 1 and found[-1] < 0.6 * found[0]
