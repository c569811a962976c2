"""Checkpoints of mmdet: the settings in their configs, their names, and what is refused."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from examples.rcnn import Config, load, weights
from examples.rcnn.config import with_settings
from examples.rcnn.mmdet_config import settings_of
from examples.rcnn.rpn import anchors
from examples.rcnn.weights import check_names, renamed, save
from tests.helpers import mask_rcnn

pytestmark = pytest.mark.platforms("cpu")

PIXELS = 1e-3


@pytest.fixture(scope="module")
def golden():
    return mask_rcnn.read(mask_rcnn.VARIANT)


@pytest.fixture(scope="module")
def text(golden):
    """The config of a model whose settings are not mmdet's usual ones, as mmengine writes it."""
    return str(golden[1]["config"])


SETTINGS = Config().settings | {
    "style": "caffe",
    "mean": (103.53, 116.28, 123.675),
    "deviation": (57.375, 57.12, 58.395),
    "bgr": True,
    "divisor": 64,
    "anchor_scales": (4, 6),
    "anchor_ratios": (0.5, 2.0),
    "anchor_stds": (0.5, 0.5, 0.8, 0.8),
    "box_stds": (0.05, 0.05, 0.1, 0.1),
    "sampling_ratio": 2,
    "proposals.per_level": 300,
    "proposals.count": 200,
    "proposals.iou_threshold": 0.6,
    "objects.score_threshold": 0.02,
    "objects.iou_threshold": 0.4,
    "objects.count": 60,
}


def test_settings_of_a_config(text):
    """mmdet runs the steps of the test data set, whatever the variable test_pipeline is."""
    other_steps = text.replace("test_pipeline = [", "test_pipeline = [dict(type='Rot90'),")
    assert other_steps != text
    assert with_settings(Config(), settings_of(other_steps)).settings == SETTINGS


@pytest.mark.parametrize(
    "text",
    [
        "train_dataloader = dict(dataset=dict(datasets=[dict(metainfo=dict(classes=('cat', 'dog')))]))",
        "train_dataloader = dict(dataset=dict(metainfo=dict(CLASSES=('cat', 'dog'))))",
        "names = ['cat', 'dog']; data = dict(train=dict(classes=names))",
    ],
)
def test_names_in_configs(text):
    assert weights.names_in({"meta": {"cfg": text}}, 2) == ("cat", "dog")
    with pytest.raises(ValueError, match="it must name its classes once, got "):
        weights.names_in({"meta": {"cfg": text, "CLASSES": ["dog", "cat"]}}, 2)
    assert weights.names_in({"meta": {"cfg": "data = dict(train=dict(classes='names.txt'))"}}, 2) == ()


def test_anchors(golden):
    found = anchors(2, 3, 8, SETTINGS["anchor_scales"], SETTINGS["anchor_ratios"])
    assert_allclose(found, golden[1]["anchors"], atol=1e-5)


@pytest.mark.thorough
def test_what_the_model_finds(golden, text, tmp_path):
    """Beside mmdet; boxes of nearly equal scores may change places."""
    np.savez(tmp_path / "mmdet.npz", **mask_rcnn.state(golden[0]))
    (tmp_path / "config.py").write_text(text)
    model, variables = load(tmp_path / "mmdet.npz", config=tmp_path / "config.py")
    found = jax.jit(model.apply)(variables, mask_rcnn.images())
    for image in range(2):
        expected = golden[1][f"boxes{image}"]
        assert len(expected) == (found.scores[image] > 0).sum()
        distances = np.abs(found.boxes[image, : len(expected), None] - expected).max(-1)
        assert distances.min(0).max() < PIXELS and distances.min(1).max() < PIXELS
        assert_allclose(found.scores[image, : len(expected)], golden[1][f"scores{image}"], atol=1e-4)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_stages=4,", "num_stages=4, base_width=4,", "model.backbone.base_width = 4, which is not implemented"),
        ("type='StandardRoIHead'", "type='CascadeRoIHead'", "model.roi_head.type .* must be 'StandardRoIHead'"),
        ("output_size=14, sampling_ratio=2", "output_size=14, sampling_ratio=0", "must agree with .*, 2, got 0"),
        ("keep_ratio=True", "keep_ratio=False", "the step Resize.keep_ratio .* must be True, .* got False"),
        ("score_thr=0.02", "score_thr=float('nan')", "objects.score_threshold must be like 0.05"),
        ("pad_size_divisor=64", "pad_size_divisor=1", "divisor must be 32 or 64 or 128, got 1"),
        ("type='PackDetInputs'", "type='Pad', pad_val=114", "the step Pad.pad_val .* must be 0 or .*, got 114"),
        ("data_preprocessor=dict(", "other=dict(", "must have a data_preprocessor, or a step Normalize"),
        ("model = dict(", "_base_ = 'a.py'\nmodel = dict(", "must be whole"),
        ("model = dict(", "model = dict((", "must be assignments of Python"),
        ("roi_head=dict(", "bbox_head=dict(", "must have a model with a roi_head"),
        *(
            ("resume = False", statement, r"line 2\d\d of the config must be NAME = VALUE, .*, got ")
            for statement in ("model['a'] = 1", "a: int = 1", "model += 1", "from a import b", "a, b = 1, 2")
        ),
    ],
)
def test_configs_with_other_things(text, old, new, message):
    assert old in text
    with pytest.raises(ValueError, match=message):
        with_settings(Config(), settings_of(text.replace(old, new)))


@pytest.mark.parametrize(
    "data", ["", "data = dict(test=[dict(dataset=dict(pipeline=test_pipeline))])\ntest_pipeline = 3"]
)
def test_a_config_of_mmdet_2(data):
    text = mask_rcnn.GOLDEN.with_name("mmdet_2.txt").read_text()
    assert settings_of(text + data) == {
        "style": "caffe",
        "proposals.per_level": 900,
        "proposals.count": 800,
        "proposals.iou_threshold": 0.6,
        "objects.score_threshold": 0.1,
        "objects.iou_threshold": 0.4,
        "objects.count": 50,
        "mask_threshold": 0.4,
        "scale": [1000, 600],
        "mean": [1.0, 2.0, 3.0],
        "deviation": [1.0, 1.0, 1.0],
        "bgr": True,
        "divisor": 32,
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strides": [4]}, "a setting must be one of style, mean, .*, got 'strides'"),
        ({"mean": [1.0]}, r"mean must be like \(123.675, 116.28, 103.53\), got \(1.0,\)"),
        ({"bgr": 1}, "bgr must be like False, got 1"),
        ({"objects.count": 0}, "objects.count must be like 100, got 0"),
    ],
)
def test_settings_that_do_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        with_settings(Config(), settings)


OFFSETS = "backbone.layer2.0.conv2.conv_offset.weight"


@pytest.fixture
def small(golden, monkeypatch):
    """A checkpoint without most numbers, which `load` does not look at before it converts them."""
    decisive = (weights.CLASSES, weights.NECK, weights.ANCHORS)
    state = {
        name: np.zeros(shape) if name in decisive or "conv_offset" in name else np.zeros(1)
        for name, shape in golden[0].items()
    }
    monkeypatch.setattr(weights, "shapes", lambda model: None)
    monkeypatch.setattr(weights.interop, "from_torch", lambda state, shapes: state)
    return state


def test_files_without_a_config(small, tmp_path, caplog):
    path = tmp_path / "a.npz"
    np.savez(path, **small)
    model, _ = load(path, settings={"style": "caffe", "anchor_ratios": [1, 2, 3, 4]})
    assert (model.config.style, model.config.anchor_ratios) == ("caffe", (1, 2, 3, 4))
    assert "a.npz has no config of mmdet. Assumed: mean=[123.675, 116.28, 103.53], " in caplog.text
    assert "style=" not in caplog.text and "anchor_ratios=" not in caplog.text and "unit" not in caplog.text
    load(path, settings={"mean": [0.485, 0.456, 0.406], "anchor_ratios": [1, 2, 3, 4]})
    assert f"{path}: mean is [0.485, 0.456, 0.406], but images are from 0 to 255 before it is subtracted" in caplog.text
    with pytest.raises(ValueError, match=r"a.npz does not fit: anchor_scales and .* must make 4 anchors per .* got 3"):
        load(path)
    (tmp_path / "a.py").write_text("model = {}\nmodel['roi_head'] = {}")
    with pytest.raises(ValueError, match=r"a.py does not fit: line 2 of the config must be NAME = VALUE"):
        load(path, config=tmp_path / "a.py")


def test_settings_go_with_a_model(small, text, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(weights.interop, "to_torch", lambda variables: variables)
    np.savez(tmp_path / "a.npz", **small)
    model, _ = load(tmp_path / "a.npz", settings=SETTINGS)
    caplog.clear()
    save(tmp_path / "b.npz", model, small)
    assert load(tmp_path / "b.npz")[0] == model and not caplog.text
    (tmp_path / "a.py").write_text(text.replace("style='caffe'", "style='pytorch'"))
    assert load(tmp_path / "b.npz", config=tmp_path / "a.py")[0].config.style == "pytorch"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": np.array('["cat"]')}, "it must name its .* classes, got 1 names"),
        ({"settings": np.array("[]")}, r"its settings must be an object of JSON, got \[\]"),
        ({"settings": np.array("{")}, "its settings must be JSON: "),
        ({"backbone.bn1.running_mean": np.array([0, np.nan])}, "finite, but those in 'backbone.bn1.running_mean' are"),
        ({OFFSETS.replace("2.conv_", "2_"): np.zeros(1)}, r"once, but has .*layer2.0.conv2_offset.weight' by its new"),
    ],
)
def test_files_that_are_refused(changes, message, small, tmp_path):
    np.savez(tmp_path / "a.npz", **small | changes)
    with pytest.raises(ValueError, match=f"a.npz.*{message}"):
        load(tmp_path / "a.npz")
    if "classes" not in changes:
        with pytest.raises(ValueError, match=f"a.npz.*{message}"):
            weights.with_backbone(tmp_path / "a.npz", model=None, key=None)


def test_files_of_mmengine(small, text, tmp_path):
    torch = pytest.importorskip("torch")
    tensors = {
        f"module.{name}".replace("conv2.conv_offset", "conv2_offset"): torch.from_numpy(array)
        for name, array in small.items()
    }
    torch.save({"meta": {"cfg": text}, "state_dict": tensors, "message_hub": {"path": tmp_path}}, tmp_path / "a.pth")
    model, found = load(tmp_path / "a.pth")
    assert model.config.settings == SETTINGS and model.config.stage_with_dcn == (False, True, True, True)
    assert found.keys() == small.keys()


def test_names():
    old = {"module.backbone.layer2.0.conv2_offset.weight": 1, "module.neck.a": 2}
    assert renamed(old) == {"backbone.layer2.0.conv2.conv_offset.weight": 1, "neck.a": 2}
    assert renamed({"module.a": 1, "b": 2}) == {"module.a": 1, "b": 2}
    for name, library in {
        "roi_heads.box_predictor.cls_score.weight": "torchvision",
        "backbone.bottom_up.res2.0.conv1.weight": "Detectron2",
        "bbox_head.fc_cls.weight": "mmdet 1, or a detector of one stage",
    }.items():
        with pytest.raises(ValueError, match=f"must be of mmdet's Faster R-CNN or Mask R-CNN, but is of {library}$"):
            check_names({"backbone.a": 1, name: 2})
