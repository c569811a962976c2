"""The detectors of digits: data, scores, losses and the demo; and the options and docstrings of all examples."""

import doctest
import importlib
import pkgutil
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import examples
from examples.detector import demo, evaluate, model, scenes
from examples.detector.backbone import locations
from examples.detector.losses import assign
from examples.detector.train import RECIPE, task_of
from examples.library import boxes
from examples.library.checkpoints import locked
from examples.library.command_line import Parser
from examples.library.training import first_state, train_step

TINY = {"classes": 10, "widths": (8, 8, 16, 16), "blocks": (1, 1, 1)}


def test_examples_in_docstrings():
    """Those of `examples`, which pytest does not collect."""
    modules = [found.name for found in pkgutil.walk_packages(examples.__path__, "examples.")]
    results = [doctest.testmod(importlib.import_module(name)) for name in modules if not name.endswith("__main__")]
    assert sum(result.attempted for result in results) >= 15
    assert not any(result.failed for result in results)


COMMANDS = ["detector.demo", "rcnn.digits out"]
COMMANDS += [f"{name} a b" for name in ("rcnn.__main__", "rcnn.train", "detr.__main__", "detr.train")]


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_written_in_full(command, capsys):
    name, *positional = command.split()
    beginning = "--siz" if name == "rcnn.digits" else "--ou"
    with pytest.raises(SystemExit):
        importlib.import_module(f"examples.{name}").main([*positional, beginning, "9", "--unknown"])
    assert f"unrecognized arguments: {beginning} 9 --unknown" in capsys.readouterr().err


def test_options_are_given_once(capsys):
    parser = Parser("train", "Train.")
    parser.add_argument("--out")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("words", nargs="*")
    assert parser.parse_args(["--resume", "--", "--resume"]).words == ["--resume"]
    for arguments in (["--out", "a", "--out=b"], ["--resume", "--resume"]):
        with pytest.raises(SystemExit):
            parser.parse_args(arguments)
        assert f"{arguments[0]} must be given once, got it 2 times" in capsys.readouterr().err


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


def test_suppression_keeps_the_best_of_each_class():
    overlapping = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [1, 0, 11, 10], [50, 50, 60, 60]], np.float32)
    scores = np.array([0.9, 0.8, 0.7, 0.6], np.float32)
    kept = boxes.suppress(overlapping, scores, np.array([1, 1, 2, 1]), 0.5)
    assert_allclose(kept, [0.9, 0, 0.7, 0.6])


def test_perfect_predictions_have_an_average_precision_of_one():
    batch = scenes.make_batch("validation", 0, range(20))
    perfect = evaluate.Detections(batch.boxes, (batch.labels >= 0).astype(np.float32), batch.labels)
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


@pytest.mark.slow
def test_the_demo(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "WIDTHS", TINY["widths"])
    monkeypatch.setattr(demo, "BLOCKS", TINY["blocks"])
    picture = tmp_path / "new" / "demo.png"
    for arguments, message in [(["--steps", "0"], "--steps must be positive, got 0"), ([], "another run")]:
        with locked(picture.with_suffix("")), pytest.raises(SystemExit) as caught:
            demo.main([*arguments, "--out", str(picture)])
        assert message in f"{capsys.readouterr().err}{caught.value}"
    few = ["--steps", "1", "--batch-size", "1", "--validation-images", "2"]
    demo.main([*few, "--out", str(picture)])
    said = capsys.readouterr().out
    assert re.search(r"^AP [\d.]+ %, AP50 [\d.]+ %, AP75 [\d.]+ %$", said, re.MULTILINE)
    assert str(picture) in said and picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_training_compiles_one_step_and_learns_a_batch():
    train_step.clear_cache()
    task = task_of(model.Detector(**TINY), replace(RECIPE, steps=40, learning_rate=1e-2, warmup=2))
    batch, losses = scenes.make_batch("train", 0, range(4), 64), []
    state = first_state(task.recipe, task.variables)
    for _ in range(task.recipe.steps):
        state, measured = train_step(task.loss, task.recipe, state, batch)
        losses.append(measured["loss"])
    assert train_step._cache_size() == 1 and losses[-1] < 0.6 * losses[0]
