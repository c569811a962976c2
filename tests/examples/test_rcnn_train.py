"""The trainer and the commands of `examples.rcnn`."""

import contextlib
import json
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from examples.library.boxes import Boxes
from examples.library.coco import open_image, read
from examples.rcnn import RCNN, Config, weights
from examples.rcnn.__main__ import class_names
from examples.rcnn.__main__ import main as draw
from examples.rcnn.coco import Loading, evaluation_batches, training_batches
from examples.rcnn.config import ObjectLimits
from examples.rcnn.images import resize, resized_size
from examples.rcnn.roi_heads import pool
from examples.rcnn.train import main as command
from examples.rcnn.train import parse
from jax_dcn import interop
from tests.helpers import coco, mask_rcnn

pytestmark = pytest.mark.platforms("cpu")


@pytest.fixture
def data(digits_folder):
    return [str(digits_folder / "train.json"), str(digits_folder / "train")]


@pytest.fixture
def validation(digits_folder):
    return ["--validation", str(digits_folder / "validation.json"), str(digits_folder / "validation")]


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ({"classes": 7}, ["--evaluate-only"], "does not name its 7 classes, so the annotations must have as many"),
        # A validation image has five objects, and the others, which are not used, have at most four.
        ({"objects": ObjectLimits(count=4)}, ["--evaluate-only"], "The model finds at most 4 objects in an image"),
        ({"objects": ObjectLimits(count=5)}, ["--evaluate-only"], ""),
        ({"masks": False}, [], "The annotations have masks, which are not used, because the checkpoint has no mask"),
        ({"masks": False}, ["--boxes-only"], ""),
        ({}, [], ""),
    ],
)
def test_what_is_said_of_a_checkpoint(settings, options, said, data, validation, monkeypatch, capsys):
    model = RCNN(Config(**{"classes": 10} | settings))
    monkeypatch.setattr("examples.rcnn.train.read_checkpoint", lambda *_: (model, {}))
    monkeypatch.setattr("examples.rcnn.train.adapt", lambda model, variables, *_: (model, variables))
    with contextlib.suppress(SystemExit):
        parse([*data, *validation, "--checkpoint", "a.npz", *options])
    printed = "".join(capsys.readouterr())
    assert said in printed
    assert said or not re.search("error|finds at most|not used", printed)


@pytest.mark.parametrize("masks", [False, True])
def test_the_scores_that_may_be_best(masks, data, validation, monkeypatch, refusal):
    """Those of masks only for a model that has them."""
    monkeypatch.setattr("examples.rcnn.train.initialise", lambda *_: {"params": {"roi_head": {"bbox_head": {}}}})
    arguments = [*data, *validation, "--size", "64", "64", *([] if masks else ["--boxes-only"])]
    assert parse(arguments).best == "box AP"
    if masks:
        assert parse([*arguments, "--best", "mask AP50"]).best == "mask AP50"
    else:
        message = "--best must be one of box AP, box AP50, box AP75"
        assert message in refusal(parse, *arguments, "--best", "mask AP50")


@pytest.fixture
def photos(tmp_path):
    """Images of noise, the first two of which are not upright, and one object."""
    return read(*coco.write(tmp_path, [(20, 10), (30, 30), (10, 25), (9, 18)], [(1, 1, [1, 1, 5, 5])]))


def test_images_for_evaluation(photos):
    """They are resized to the scale of the model, as the command that draws does, whether upright or not."""
    config = Config(scale=(70, 40))
    (wide, flat), (upright, tall) = evaluation_batches(
        photos, Loading((32, 32), batch_size=2, colour=(1, 2, 3)), config
    )
    assert (wide, upright) == ([1, 2], [3, 4]) and flat.shape == (2, 64, 96, 3) and tall.shape == (2, 96, 64, 3)
    for image, pixels in zip((*wide, *upright), (*flat, *tall), strict=True):
        photo = np.asarray(open_image(photos, image))
        height, width = resized_size(*photo.shape[:2], config.scale)
        assert (max(height, width), min(height, width)) in ((70, 35), (70, 28), (40, 40))
        assert_array_equal(pixels[:height, :width], resize(jnp.asarray(photo)[None], height, width)[0])
        assert (pixels[height:] == (1, 2, 3)).all() and (pixels[:, width:] == (1, 2, 3)).all()


@pytest.mark.parametrize("size", [(64, 96), (96, 64)])
def test_training_images_have_the_scale_of_evaluation(size, photos):
    """Upright images have batches of their own. A run that goes on has the same batches."""
    loading = Loading(size, batch_size=2, background=True, masks=False, mirrors=False)
    evaluated = [image for _, batch in evaluation_batches(photos, loading, Config(scale=size)) for image in batch]
    found, rest = (list(training_batches(photos, loading, range(start, 8))) for start in (0, 5))
    jax.tree.map(assert_array_equal, found[5:], rest)
    pixels = [image for batch in found for image in batch.images]
    for expected in evaluated:
        assert sum(np.array_equal(image, expected) for image in pixels) == len(pixels) / 4


NAMES = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]


def test_names_of_classes(tmp_path):
    path = tmp_path / "names.json"
    for categories, message in (
        ([NAMES[0], {"id": 2, "name": "cat"}], r"name of categories\[1\] .* must be different from that of"),
        (NAMES[:1], "names.json must have the 2 categories of the checkpoint, got 1"),
    ):
        path.write_text(json.dumps({"categories": categories}))
        with pytest.raises(ValueError, match=message):
            class_names(path, Config(classes=2))
    path.write_text(json.dumps({"categories": NAMES}))
    for known in ((), ("cat", "dog")):
        assert class_names(path, Config(known, 2)) == ["cat", "dog"]
    with pytest.raises(ValueError, match=r"names.json must have the classes .* has 'dog' in place of 'cat'; without"):
        class_names(path, Config(("dog", "cat"), 2))
    assert class_names(None, Config(("cat", "dog"), 2)) == ("cat", "dog")
    assert class_names(None, Config(classes=2)) == ["class 0", "class 1"]


def test_devices_keep_their_images():
    """Pooling exchanges no features between devices that share a batch."""
    mesh = jax.make_mesh((2,), ("data",), (AxisType.Auto,), devices=jax.devices()[:2])
    random = np.random.default_rng(0)
    features = [random.normal(size=(4, 64 // stride, 64 // stride, 8)).astype("float32") for stride in (4, 8, 16, 32)]
    corner = random.uniform(0, 30, (4, 5, 2)).astype("float32")
    regions = Boxes(
        np.concatenate([corner, corner + random.uniform(5, 30, (4, 5, 2)).astype("float32")], -1),
        random.random((4, 5)) < 0.7,
    )
    arguments = jax.device_put((features, regions), NamedSharding(mesh, P("data")))
    pooled = partial(pool, bins=7)
    for compute in (jax.jit(pooled), jax.jit(jax.grad(lambda *of: pooled(*of).sum()))):
        text = compute.lower(*arguments).compile().as_text()
        assert not re.search(r"all-(gather|reduce|to-all)|collective", text)
        found, expected = compute(*arguments), compute(features, regions)
        jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)


@pytest.mark.slow
def test_a_backbone_of_imagenet(state, tmp_path, monkeypatch, caplog):
    """The names are those of torchvision's ResNet, which has a classifier and no offsets.

    The settings that a backbone needs are given, or those in its file are taken, or it is logged that they are assumed.
    """
    monkeypatch.setattr(
        weights,
        "initialise",
        lambda model, key: jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), weights.shapes(model)),
    )
    names = {name.removeprefix("backbone."): array for name, array in state.items() if name.startswith("backbone.")}
    plain = {name: array for name, array in names.items() if "conv_offset" not in name}
    classifier = {"fc.weight": np.ones((1000, 2048), np.float32), "fc.bias": np.ones(1000)}
    path, caffe = tmp_path / "resnet.npz", Config(classes=3, style="caffe")
    read = partial(weights.with_backbone, path, model=RCNN(Config(classes=3)), key=jax.random.key(0))
    np.savez(path, settings=np.array("[]"), **plain, **classifier)
    with pytest.raises(
        ValueError, match=r"resnet.npz does not fit: its settings .*; the settings style, .*, bgr \(--set\)"
    ):
        read(settings={"style": "caffe"})
    model, variables = read(settings={name: caffe.settings[name] for name in weights.OF_BACKBONE})
    found = interop.to_torch(variables)
    assert model.config == caffe and not caplog.text
    for name, array in names.items():
        if "num_batches_tracked" not in name:
            assert_array_equal(found[f"backbone.{name}"], 0 if "conv_offset" in name else array)
    assert not found["neck.fpn_convs.0.conv.weight"].any()
    del plain["layer1.0.conv1.weight"]
    np.savez(path, **plain)
    with pytest.raises(ValueError, match=r"resnet.npz does not fit: .*missing 'layer1.0.conv1.weight'"):
        read()
    assert 'resnet.npz has no config of mmdet. Assumed: style="pytorch", mean=[123.675, ' in caplog.text


@pytest.mark.thorough
def test_bfloat16(state):
    def first_stage(model, images):
        features = model.features(images)
        return features, model.rpn_head(features)

    def run(dtype):
        model = RCNN(weights.config_of(state), dtype)
        apply = jax.jit(partial(model.apply, method=first_stage))
        return apply(weights.fill(model, state), mask_rcnn.images()[:1])

    (_, anchors), (low_features, low_anchors) = run(None), run(jnp.bfloat16)
    assert low_features[0].dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(low_anchors)} == {jnp.dtype("float32")}
    assert_allclose(low_anchors.logits[0], anchors.logits[0], atol=0.05 * np.abs(anchors.logits[0]).max())


@pytest.mark.thorough
def test_the_commands(state, data, validation, digits_folder, tmp_path, capsys):
    """A checkpoint of mmdet goes through training, evaluation, into a file and into the command that draws objects."""
    few = ["--objects", "10", "--regions", "16", "--batch-size", "1", "--checkpoint-every", "1", "--devices", "1"]
    np.savez(tmp_path / "mmdet.npz", **state)
    checkpoint = ["--checkpoint", str(tmp_path / "mmdet.npz"), "--set", "box_stds=[0.1,0.1,0.2,0.1]"]
    again = [*data, *few, *validation, *checkpoint, "--size", "64", "64", "--learning-rate", "0.001"]
    again += ["--out", str(tmp_path / "trained")]
    command([*again, "--steps", "2", "--evaluate-every", "1"])
    assert "step 1: box AP " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="has checkpoints of a run"):
        command([*again, "--steps", "3"])
    command([*again, "--steps", "3", "--resume"])
    np.savez(tmp_path / "mmdet.npz", **state | {"backbone.bn1.running_mean": np.ones(64)})
    with pytest.raises(SystemExit, match="SHA-256 of the checkpoint must be "):
        command([*again, "--steps", "4", "--resume"])
    result = json.loads((tmp_path / "trained/results.json").read_text())
    first, *others = map(json.loads, (tmp_path / "trained/log.jsonl").read_text().splitlines())
    assert len(others) == 2 and {*result["scores"]} == {"1", "2", "3"}
    assert {"loss", "loss_mask", "loss_rpn_cls", "rate"} <= first.keys()
    trained = interop.load(tmp_path / "trained/model.npz")
    for name, is_trained in {"backbone.layer1.0.conv1.weight": False, "neck.fpn_convs.0.conv.weight": True}.items():
        assert np.array_equal(trained[name], state[name]) != is_trained
    capsys.readouterr()
    best = str(tmp_path / "trained/best.npz")
    command([*data, *validation, "--checkpoint", best, "--evaluate-only", "--batch-size", "1"])
    scores = max(result["scores"].values(), key=lambda one: one["box AP"])
    assert capsys.readouterr().out.startswith(f"box AP {100 * scores['box AP']:.1f}, ")
    arguments = ["--names", data[0], "--threshold", "0", "--out", str(tmp_path / "found")]
    draw([best, str(digits_folder / "validation"), *arguments])
    printed = capsys.readouterr().out
    assert printed.startswith("The model finds objects with scores from 0.05 on") and "objects are in" in printed
    for picture in ("000000.png.png", "000001.png.png"):
        with Image.open(tmp_path / "found" / picture) as image:
            assert image.size == (96, 96)
