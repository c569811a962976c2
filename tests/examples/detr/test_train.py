"""Training detection transformers: the command and its data."""

import json
import re

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from examples.detr import weights
from examples.detr.data import Loading, batched, evaluation_batches, fitted, load, training_batches
from examples.detr.images import Normalisation, Preprocessor
from examples.detr.train import main, parse
from examples.library import precision
from examples.library.coco import open_image, read
from tests.helpers import coco, detr_training, processors
from tests.helpers.slow import slow, slow_unless

pytestmark = pytest.mark.platforms("cpu")

CONFIG = detr_training.FOLDER / "rt_detr_v2/config.json"
FEW = ["--sizes", "64", "--objects", "3", "--batch-size", "2", "--steps", "3", "--warmup", "0"]
FEW += ["--devices", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six images of 64 x 80 pixels, of which the last is upright, each with one or two bright squares."""
    folder, random = tmp_path_factory.mktemp("squares"), np.random.default_rng(0)
    sizes, objects = [(80, 64)] * 5 + [(64, 80)], []
    for image in [1, 1, 2, 3, 3, 4, 5, 5, 6]:
        x, y, side = (int(random.integers(low, high)) for low, high in ((0, 40), (0, 40), (12, 24)))
        objects.append((image, int(random.integers(1, 3)), [x, y, side, side]))
    coco.write_squares(folder, sizes, objects, ["red", "yellow"])
    return folder


def data(folder):
    return [str(folder / "annotations.json"), str(folder)]


@pytest.mark.slow
def test_the_command(folder, tmp_path, capsys, caplog):
    jax.clear_caches()
    options = [*FEW, "--out", str(tmp_path), "--validation", *data(folder), "--evaluate-every", "2"]
    config, settings = tmp_path / "config.json", json.loads(CONFIG.read_text())
    settings |= {"weight_loss_bbox": 0, "matcher_alpha": 0.25, "num_querys": 5}
    settings["backbone_config"]["depth"] = [1, 1, 1, 1]
    config.write_text(json.dumps(settings))
    (tmp_path / "processor_config.json").write_text('{"image_processor": {"do_normalize": true}}')
    with jax.log_compiles():
        main([*data(folder), "--config", str(config), *options])
    compiled = re.findall(r"Finished XLA compilation of jit\((\w+)\)", caplog.text)
    programs = ("_init", "first_state", "train_step", "find")
    assert [compiled.count(name) for name in programs] == [1] * len(programs)  # pictures have that of evaluations
    printed = capsys.readouterr().out
    (without_effect,) = re.findall(f"Settings in {config} without an effect: (.*)", printed)
    assert {"num_querys", "backbone_config.depth"} <= {*without_effect.split(", ")}
    assert {"num_queries", "id2label", "weight_loss_bbox"}.isdisjoint(without_effect.split(", "))
    assert "6 of the 6 validation images are trained on, too.\n" in printed
    assert f"{tmp_path}/processor_config.json is not used, because training starts from random weights.\n" in printed
    assert "without these settings of config.json: weight_loss_bbox=0\n" in printed
    assert "step 2: AP " in printed and "step 3: AP " in printed and "waited for data" in printed
    result = json.loads((tmp_path / "results.json").read_text())
    first, *_ = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert {"loss", "rate", "loss_vfl", "loss_bbox_dn_0", "milliseconds"} <= first.keys()
    assert result["scores"].keys() == {"2", "3"}
    assert weights.load(tmp_path / "model").labels == weights.load(tmp_path / "best").labels == ["red", "yellow"]
    assert {"AP of red", "AP of yellow"} <= result["scores"]["3"].keys()
    for name in ("curves.png", "detections.png", "mistakes.png"):
        with Image.open(tmp_path / name) as picture:
            assert len(picture.convert("RGB").getcolors(10**7)) > 50
    main([*data(folder), "--validation", *data(folder), "--checkpoint", str(tmp_path / "best"), "--evaluate-only"])
    best = max(result["scores"].values(), key=lambda scores: scores["AP"])
    printed = "\n".join([precision.described(best), *precision.described_by_class(best)])
    assert capsys.readouterr().out.startswith(f"{printed}\n")
    with pytest.raises(SystemExit, match="has checkpoints of a run"):
        main([*data(folder), "--checkpoint", str(tmp_path / "model"), *options])


def test_validation_images_that_would_have_no_pixel(folder, tmp_path, refusal):
    """They are refused before the training, and not in its first evaluation."""
    content = json.loads((folder / "annotations.json").read_text())
    content["images"][2] |= {"width": 400, "height": 2}
    (tmp_path / "long.json").write_text(json.dumps(content))
    start = str(detr_training.FOLDER / "deformable_detr")
    said = refusal(parse, *data(folder), "--checkpoint", start, *FEW, "--validation", tmp_path / "long.json", folder)
    assert "3.png does not fit: an image of 2 x 400 pixels would have no pixel" in said


def test_batches(folder):
    dataset = read(folder / "annotations.json", folder)
    loading = Loading(((64, 64), (96, 96)), batch_size=2, objects=3, seed=1)
    found, again = (list(training_batches(dataset, loading, range(8))) for _ in range(2))
    jax.tree.map(assert_array_equal, found, again)
    assert {batch.images.shape for batch in found} == {(2, 64, 64, 3), (2, 96, 96, 3)}
    plain = Loading(((96, 96),), batch_size=4, objects=3, keeps_ratio=True, augmented=False, mirrors=False)
    processor = Preprocessor.from_json("deformable_detr", {}).for_training("deformable_detr", 96)
    (ids, (images, mask)), (last, (padded, _)) = evaluation_batches(dataset, processor, plain)
    assert ids == [1, 2, 3, 4] and last == [5, 6] and images.shape == padded.shape == (4, 96, 96, 3)
    assert mask[:, :76].all() and not mask[:, 76:].any()
    batch = batched([fitted(load(dataset, image), (96, 96), plain) for image in ids], 3)
    for index, image in enumerate(ids):
        for number, one in enumerate(dataset.objects(image)):
            x, y, side, _ = one["bbox"]
            expected = [(x + side / 2) / 80, (y + side / 2) / 64, side / 80, side / 64]
            assert_allclose(batch.targets.boxes[index, number], expected, rtol=1e-5)
            assert batch.targets.labels[index, number] == one["category_id"] - 1
        assert (batch.targets.labels[index, len(dataset.objects(image)) :] == -1).all()


@pytest.mark.parametrize("name", ["deformable_detr", "rt_detr_v2"])
def test_images_are_those_of_the_processor(name, folder, tmp_path):
    """The values are those of the checkpoint, as transformers' script for fine-tuning and other settings make them."""
    settings = processors.FINE_TUNED | processors.BYTES | {"resample": 3}
    start = weights.load(detr_training.FOLDER / name)
    weights.save(tmp_path, start._replace(processor=Preprocessor.from_json(name, settings)))
    options = parse([*data(folder), "--checkpoint", str(tmp_path), *FEW, "--no-augmentation", "--no-mirror"])
    dataset, _, checkpoint = options.inputs
    assert not (options.loading.mirrors or options.loading.augmented)
    assert checkpoint.processor.normalisation == Normalisation(1.0, (124, 116, 104), (58, 57, 57.5))
    for image in dataset.images:
        batch = batched([fitted(load(dataset, image), options.loading.sizes[0], options.loading)], 3)
        pixels, mask = checkpoint.processor(open_image(dataset, image))
        assert_array_equal(batch.images, pixels)
        assert_array_equal(batch.mask, mask)


@pytest.mark.parametrize(
    ("name", "settings", "options", "size", "message"),
    [
        ("rt_detr_v2", {"size": [96, 64], "resample": 3}, [], (96, 64), ""),
        slow("rt_detr_v2", {"size": [96, 64], "resample": 3}, ["--sizes", "32"], (32, 32), ""),
        ("rt_detr_v2", {"size": [96, 64]}, ["--sizes", "64", "32"], (32, 32), "at 32 pixels, the last of --sizes"),
        ("rt_detr_v2", {"size": [90, 60]}, [], (640, 640), "up to 90 x 60 pixels, which the model cannot take"),
        slow_unless(
            False, "rt_detr_v2", {"do_resize": False}, [], (640, 640), "Their size is 640 x 640 pixels instead"
        ),
        slow("deformable_detr", {"size": [90, 60]}, [], (90, 60), ""),
        ("deformable_detr", {"size": [30, 40], "pad_size": [36, 41]}, [], (36, 41), ""),
        ("deformable_detr", {"size": {"shortest_edge": 32, "longest_edge": 99}}, [], (40, 40), "are padded to 40 x 40"),
    ],
)
def test_a_checkpoint_is_evaluated_as_it_is(name, settings, options, size, message, folder, tmp_path, capsys):
    """With its own sizes, padding and filter, unless the options say otherwise."""
    start = weights.load(detr_training.FOLDER / name)
    labelled = weights.with_labels(start.config, ["red", "yellow", *start.labels[2:]])
    processor = Preprocessor.from_json(name, settings)
    weights.save(tmp_path / "start", start._replace(config=labelled, processor=processor))
    common = [*data(folder), "--checkpoint", str(tmp_path / "start"), "--evaluate-only"]
    parsed = parse([*common, "--validation", *data(folder), *options])
    printed = capsys.readouterr().out
    assert message in printed and bool(message) == bool(printed)
    _, validation, checkpoint = parsed.inputs
    ids, (images, masks) = next(evaluation_batches(validation, checkpoint.processor, parsed.loading))
    assert images.shape[1:3] == size
    if not (options or message):
        for image, *found in zip(ids, images, masks, strict=False):
            expected = processor(open_image(validation, image))
            jax.tree.map(assert_array_equal, found, [array[0] for array in expected])
