"""What the example detectors share: data, scores and tables; and the examples in all docstrings."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest
from numpy.testing import assert_allclose

pytest.importorskip("sklearn")
pytest.importorskip("pycocotools")
pytest.importorskip("orbax.checkpoint")

import examples
from examples.digits_library import evaluate, report, scenes
from examples.library import boxes


def test_examples_in_docstrings():
    """Those of `examples`, which pytest does not collect."""
    modules = [found.name for found in pkgutil.walk_packages(examples.__path__, "examples.")]
    results = [doctest.testmod(importlib.import_module(name)) for name in modules if not name.endswith("__main__")]
    assert sum(result.attempted for result in results) >= 15
    assert not any(result.failed for result in results)


def test_a_scene_depends_on_split_seed_and_index_alone():
    first, again = (scenes.make_scene("train", 3, 5) for _ in range(2))
    assert all(map(np.array_equal, first, again))
    for other in (scenes.make_scene("train", 3, 6), scenes.make_scene("train", 4, 5)):
        assert not np.array_equal(first.images, other.images)
    batch = scenes.make_batch("train", 3, range(4, 6))
    assert all(np.array_equal(part[1], expected) for part, expected in zip(batch, first, strict=True))


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
    assert_allclose(list(evaluate.average_precision([batch], [perfect]).values()), 1, atol=1e-6)
    shifted = perfect._replace(boxes=batch.boxes + 200)
    assert_allclose(list(evaluate.average_precision([batch], [shifted]).values()), 0)
    nothing = perfect._replace(scores=np.zeros_like(perfect.scores))
    assert_allclose(list(evaluate.average_precision([batch], [nothing]).values()), 0)


def test_the_table_gives_mean_and_spread_over_seeds():
    scores = dict.fromkeys(report.SCORES, 0.5) | {"parameters": 1234, "ms per step": 7.0}
    runs = [{"variant": "plain", "dilation": 1 + ap, **scores, "AP": ap} for ap in (0.1, 0.3)]
    table = " ".join(report.markdown_table(runs, ("dilation",)).split())
    assert "| 20.0 ± 14.1 | 50.0 ± 0.0 |" in table and "| 1,234 | 7 | 1.20 ± 0.14 |" in table
