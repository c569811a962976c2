"""Images and boxes are those that transformers' processors make, of their backend with PIL, with the same settings."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

from examples.detr import __main__ as command
from examples.detr import weights
from examples.detr.data import Loading, batched, fitted
from examples.detr.images import IGNORED, KNOWN, PROCESSORS, Preprocessor
from examples.library.augment import Example
from examples.library.photographs import ImageError
from tests.helpers import processors
from tests.helpers.slow import slow_unless

pytestmark = pytest.mark.platforms("cpu")

NAN, INF = float("nan"), float("inf")
NO_BOXES = np.zeros((0, 4), np.float32), np.zeros(0, np.int32)


@pytest.fixture(scope="module")
def golden():
    with np.load(processors.GOLDEN) as file:
        return dict(file)


def measured(processor, images, mask):
    """As in the golden file, and by how much the sum may differ because of rounding."""
    pixels = processor.normalisation(images, mask)[0]
    return processors.measured(pixels, mask[0]), 5e-7 * np.linalg.norm(pixels)


def processed(kind, parts, size):
    try:
        processor = Preprocessor.from_json("rt_detr", {"image_processor_type": kind} | processors.merged(parts))
        return measured(processor, *processor(processors.image(*size)))
    except ValueError:
        return (-1,) * 5, 0


def assert_as_in_transformers(cases, found, expected):
    """The shapes are equal, and the sums as close as float32 allows."""
    values, tolerances = np.array([value for value, _ in found]), [tolerance for _, tolerance in found]
    equal = (values[:, :4] == expected[:, :4]).all(1) & (np.abs(values - expected)[:, 4] <= tolerances)
    wrong = [cases[index] for index in np.flatnonzero(~equal)]
    assert not wrong, f"{len(wrong)} of {len(cases)}, such as {wrong[0]}"


def test_images_for_all_combinations_of_settings(golden):
    """Where transformers refuses an image or a setting, so does this package."""
    found = [processed(*case) for case in processors.CASES]
    assert_as_in_transformers(processors.CASES, found, golden["cases"])


def test_the_processor_of_a_trained_model(golden):
    """transformers accepts what is written, and makes the images that a model is trained and evaluated with."""
    for (model, settings), written, expected in zip(
        processors.STARTS, golden["written"], golden["trained"], strict=True
    ):
        processor = Preprocessor.from_json(model, settings).for_training(model, processors.SIDE)
        assert json.loads(json.dumps(processor.settings)) == json.loads(str(written))
        side = (processors.SIDE,) * 2
        loading = Loading((side,), batch_size=1, keeps_ratio=model == "deformable_detr", resample=processor.resample)
        found = []
        for size in processors.TRAINED_ON:
            example = Example(np.asarray(processors.image(*size)), *NO_BOXES)
            batch = batched([fitted(example, side, loading)], 1)
            found.append(measured(processor, batch.images, batch.mask))
        assert_as_in_transformers([(model, settings, size) for size in processors.TRAINED_ON], found, expected)


@pytest.mark.parametrize("number", [slow_unless(number == 0, number) for number in range(len(processors.COMMANDS))])
def test_boxes_in_a_photo(number, golden, tmp_path):
    name, settings = processors.COMMANDS[number]
    checkpoint = weights.load(processors.CHECKPOINTS / name)
    processor = Preprocessor.from_json(checkpoint.model_type, settings)
    weights.save(tmp_path / "model", checkpoint._replace(processor=processor))
    assert json.loads((tmp_path / "model/preprocessor_config.json").read_text()) == settings
    processors.image(*processors.PHOTO).save(tmp_path / "photo.png")
    out, found = tmp_path / "out.png", tmp_path / "found.json"
    files = [str(tmp_path / "photo.png"), "--out", str(out), "--json", str(found)]
    command.main([str(tmp_path / "model"), *files, "--threshold", str(processors.THRESHOLD)])
    objects = json.loads(found.read_text())[0]["objects"]
    scores, boxes = ([one[name] for one in objects] for name in ("score", "box"))
    assert_allclose(scores, golden[f"{number}/scores"], atol=1e-5)
    assert [one["class"] for one in objects] == [checkpoint.labels[label] for label in golden[f"{number}/labels"]]
    assert_allclose(np.reshape(boxes, (-1, 4)), golden[f"{number}/boxes"], atol=1e-3)


def test_all_settings_of_transformers_are_known(golden):
    assert set(golden["keys"].tolist()) <= KNOWN


@pytest.mark.parametrize("model_type", PROCESSORS)
def test_settings_without_effect(model_type):
    """Also the names of processors in files of older transformers."""
    kind = PROCESSORS[model_type]
    plain = Preprocessor.from_json(model_type, {})
    for settings in (
        dict.fromkeys(IGNORED, True),
        {"image_processor_type": f"{kind}Fast", "feature_extractor_type": "other"},
        {"feature_extractor_type": kind.replace("ImageProcessor", "FeatureExtractor")},
    ):
        found = Preprocessor.from_json(model_type, settings)
        assert found == Preprocessor(plain.size, plain.resample, plain.pad_size, plain.normalisation, settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"do_resize": True, "scale": 2, "crop": 1}, "must be known, got 'scale', 'crop'"),
        ({"image_processor_type": "ViTImageProcessor"}, "image_processor_type must be Deformable.*, got ViTImage"),
        ({"do_pad": "yes"}, "do_pad must be true or false, got 'yes'"),
        ({"size": 640}, "size must be positive integers named height and width, or shortest_edge .*, got 640"),
        ({"size": {"shortest_edge": 640}}, "size must be .*, got {'shortest_edge': 640}"),
        ({"size": {"height": 640, "width": 640.0}}, "size must be .*, got {'height': 640, 'width': 640.0}"),
        ({"size": {"height": 0, "width": 640}}, "size must be .*, got {'height': 0, 'width': 640}"),
        ({"size": [640, 640, 3]}, r"size must be .*, got \[640, 640, 3\]"),
        ({"resample": 6}, "resample must be the number of a filter of PIL, 0 to 5, got 6"),
        ({"do_pad": True, "pad_size": {"height": 9}}, "pad_size must be positive integers named .*, got {'height': 9}"),
        *(
            ({"rescale_factor": value}, "rescale_factor must be a positive .*, got")
            for value in (None, "1", 0, -1, NAN, INF, 1e-300, 10**400)
        ),
        *(
            ({"do_normalize": True, "image_mean": value}, "image_mean must be a finite number or a list of three, got")
            for value in ([0.5], NAN, [0, 0, -INF])
        ),
        ({"do_normalize": True, "image_std": [1, 0, 1]}, "image_std must be a positive number or .*, got"),
    ],
)
def test_settings_that_are_refused(settings, message, tmp_path):
    (tmp_path / "config.json").write_text((processors.CHECKPOINTS / "rt_detr_v2/config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=f"preprocessor_config.json does not fit: .*{message}"):
        weights.load(tmp_path)


def test_an_image_that_would_have_no_pixel():
    """It is trained on as one row; evaluation refuses it, as transformers does."""
    loading = Loading(((64, 64),), batch_size=1, keeps_ratio=True)
    assert fitted(Example(np.zeros((1, 200, 3), np.uint8), *NO_BOXES), (64, 64), loading)[1] == (1, 64)
    with pytest.raises(ImageError, match="an image of 1 x 200 pixels would have no pixel at the size"):
        Preprocessor.from_json("deformable_detr", {}).for_training("deformable_detr", 64).shapes(1, 200)
