"""The example detector: its data, its training and its scores."""

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

from examples.detector import boxes, evaluate, report, sampling, scenes
from examples.detector.__main__ import main
from examples.detector.losses import assign, detection_loss
from examples.detector.model import Detector, locations
from examples.detector.train import Recipe, train

IMAGE_SIZE = 64
TINY = {"classes": 10, "widths": (8, 8, 16, 16), "blocks": (1, 1, 1)}
RECIPE = Recipe(steps=60, batch_size=4, learning_rate=1e-2, checkpoint_every=25)
MODEL = Detector(**TINY, deformable=True)


def test_a_scene_depends_on_split_seed_and_index_alone():
    first, again = (scenes.make_scene("train", 3, 5) for _ in range(2))
    assert all(map(np.array_equal, first, again))
    for other in (scenes.make_scene("train", 3, 6), scenes.make_scene("train", 4, 5)):
        assert not np.array_equal(first.images, other.images)
    batch = scenes.make_batch("train", 3, range(4, 6))
    assert all(np.array_equal(part[1], expected) for part, expected in zip(batch, first, strict=True))


def test_the_training_batches_of_a_resumed_run_are_those_of_an_uninterrupted_one():
    whole = list(scenes.training_batches(0, range(4), 2))
    for batch, expected in zip(scenes.training_batches(0, range(2, 4), 2), whole[2:], strict=True):
        assert_array_equal(batch.images, expected.images)


def test_no_digit_and_no_part_of_a_photograph_is_in_both_splits():
    train_split, validation = scenes.load_material("train"), scenes.load_material("validation")
    train_glyphs = {glyph.tobytes() for glyph in train_split.glyphs}
    assert not any(glyph.tobytes() in train_glyphs for glyph in validation.glyphs)
    assert len(train_split.glyphs) + len(validation.glyphs) == 1797
    for left, right in zip(train_split.photos, validation.photos, strict=True):
        assert left.shape[1] + right.shape[1] == 640


def test_boxes_are_tight(monkeypatch):
    """On a black background without fragments every lit pixel is in a box, and every box's four sides touch one."""
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


def test_one_image_holds_small_and_large_objects():
    batch = scenes.make_batch("train", 0, range(20))
    sizes = [evaluate.size_class(image_boxes[labels >= 0]) for image_boxes, labels in zip(*batch[1:], strict=True)]
    assert np.mean([{0, 2} <= set(image.tolist()) for image in sizes]) > 0.5
    heights = (batch.boxes[..., 3] - batch.boxes[..., 1])[batch.labels >= 0]
    assert heights.max() > 4 * heights.min()


def test_every_object_has_a_location_and_the_smallest_wins():
    cells = locations(64, 64)
    objects = np.array([[0, 0, 60, 60], [29, 29, 31, 31], [0, 0, 0, 0]], np.float32)
    chosen, found = map(np.asarray, assign(cells, objects, np.array([3, 4, -1])))
    assert set(chosen[found]) == {0, 1}
    assert_array_equal(cells[found & (chosen == 1)], [[28, 28]])


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


def test_effective_dilation_of_a_spread_filter():
    assert_allclose(sampling.effective_dilation((0.5 * sampling.KERNEL).ravel()), 1.5, rtol=1e-6)


def test_stacked_layers_without_offsets_sample_five_by_five_cells():
    layer = {"offset": np.zeros((1, 16, 16, 18)), "mask": np.ones((1, 16, 16, 9))}
    points, weights = sampling.sampled_points([layer, layer], 0, np.array([8, 8]))
    assert len(points) == 81 and weights.tolist() == [1] * 81
    assert {tuple(point) for point in points.tolist()} == {(y, x) for y in range(6, 11) for x in range(6, 11)}


def test_a_deformable_detector_starts_as_the_plain_one():
    images = scenes.make_batch("train", 0, range(2), IMAGE_SIZE).images
    plain, deformable = (Detector(**TINY, deformable=flag) for flag in (False, True))
    params = jax.jit(deformable.init)(jax.random.key(0), images)["params"]
    without_offsets = jax.tree.map(lambda leaf: leaf, params)
    for name in [name for name in params if name.startswith("stage3")]:
        for conv in ("conv1", "conv2"):
            del without_offsets[name][conv]["conv"]["conv_offset"]
    expected = jax.jit(plain.apply)({"params": without_offsets}, images)
    for got, want in zip(jax.jit(deformable.apply)({"params": params}, images), expected, strict=True):
        assert_allclose(got, want, atol=1e-4)


def test_the_table_gives_mean_and_spread_over_seeds():
    scores = dict.fromkeys(report.SCORES, 0.5) | {"parameters": 1234, "ms per step": 7.0}
    dilations = {key: [1.0, 2.0] for key in evaluate.SIZE_LIMITS}
    runs = [{"variant": "plain", "dilations": dilations, **scores, "AP": ap} for ap in (0.1, 0.3)]
    assert "| 20.0 ± 14.1 | 50.0 ± 0.0 |" in " ".join(report.markdown_table(runs).split())


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def traces():
    """Grows by one element whenever the training step is traced."""
    counted = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "examples.detector.train.detection_loss", lambda *args: counted.append(1) or detection_loss(*args)
        )
        yield counted


@pytest.fixture(scope="module")
def uninterrupted(checkpoints, traces):
    return train(MODEL, RECIPE, 0, checkpoints, image_size=IMAGE_SIZE)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, uninterrupted, traces):
    train(MODEL, RECIPE, 0, tmp_path, image_size=IMAGE_SIZE, stop_after=30)
    resumed = train(MODEL, RECIPE, 0, tmp_path, image_size=IMAGE_SIZE, resume=True)
    assert_allclose(resumed.losses, uninterrupted.losses, rtol=1e-5)
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-4, atol=1e-5), resumed.state, uninterrupted.state)
    with pytest.raises(ValueError, match="steps must be"):
        train(MODEL, dataclasses.replace(RECIPE, steps=99), 0, tmp_path, image_size=IMAGE_SIZE, resume=True)
    assert len(traces) == 1


def test_a_finished_run_is_not_trained_again(checkpoints, uninterrupted):
    again = train(MODEL, RECIPE, 0, checkpoints, image_size=IMAGE_SIZE, resume=True)
    assert again.losses == uninterrupted.losses and again.milliseconds == uninterrupted.milliseconds
    jax.tree.map(assert_array_equal, again.state, uninterrupted.state)


def test_loss_falls(uninterrupted):
    assert np.mean(uninterrupted.losses[-10:]) < 0.95 * np.mean(uninterrupted.losses[:10])


def test_offsets_move_while_training(uninterrupted):
    block = uninterrupted.state.params["stage3_block0"]
    assert all(np.abs(block[conv]["conv"]["conv_offset"]["kernel"]).max() > 0 for conv in ("conv1", "conv2"))


def test_the_command_writes_table_json_and_pictures(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("examples.detector.__main__.Detector", partial(Detector, widths=(8, 8, 8, 8), blocks=(1, 1, 1)))
    main(["--steps", "2", "--batch-size", "4", "--validation-images", "4", "--out", str(tmp_path)])
    table = (tmp_path / "results.md").read_text()
    assert table in capsys.readouterr().out
    assert "| plain " in table and "| deformable " in table
    plain, deformable = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert set(np.ravel(list(plain["dilations"].values()))) == {1.0}
    assert deformable["parameters"] > plain["parameters"]
    for picture in ("detections.png", "sampling.png"):
        assert (tmp_path / picture).stat().st_size > 10_000
