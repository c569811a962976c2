"""Checkpoints of detection transformers: read, written and with other classes."""

import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from safetensors import numpy as safetensors

from examples.detr import weights
from examples.detr.config import label_names
from tests.helpers import detr_training
from tests.helpers.slow import slow

pytestmark = pytest.mark.platforms("cpu")

NAMES = ("deformable_detr", "deformable_detr_two_stage", "rt_detr_v2", "d_fine_simple")
FOLDERS = [detr_training.FOLDER / name for name in NAMES]
RT_DETR = FOLDERS[2]
CONFIG, INDEX = "config.json", "model.safetensors.index.json"
NESTED, PROCESSOR = "processor_config.json", "preprocessor_config.json"


@pytest.fixture
def folder(tmp_path):
    """A copy of a checkpoint."""
    for name in (CONFIG, "model.safetensors"):
        shutil.copy(RT_DETR / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize("source", FOLDERS, ids=lambda source: source.name)
def test_what_is_written_is_what_was_read(source, tmp_path):
    weights.save(tmp_path, weights.load(source))
    assert json.loads((tmp_path / CONFIG).read_text()) == json.loads((source / CONFIG).read_text())
    expected = safetensors.load_file(source / "model.safetensors")
    found = safetensors.load_file(tmp_path / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert_array_equal(found[name], array, err_msg=name)
        assert found[name].dtype == array.dtype


def test_a_file_in_parts(folder):
    arrays = safetensors.load_file(folder / "model.safetensors")
    parts = [dict(list(arrays.items())[start::2]) for start in (0, 1)]
    (folder / "model.safetensors").unlink()
    index = {}
    for number, part in enumerate(parts):
        safetensors.save_file(part, folder / f"model-{number}.safetensors")
        index |= dict.fromkeys(part, f"model-{number}.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": index}))
    expected = weights.load(RT_DETR).variables
    jax.tree.map(assert_array_equal, weights.load(folder).variables, expected)
    other = {name: np.asarray(array + 1) for name, array in parts[0].items()}
    safetensors.save_file(other | parts[1], folder / "model-1.safetensors")  # the index says which are meant
    jax.tree.map(assert_array_equal, weights.load(folder).variables, expected)
    first, *_ = parts[1]
    safetensors.save_file({"more": np.ones(1)} | other, folder / "model-1.safetensors")
    with pytest.raises(ValueError, match=rf"index.json do not fit: missing .*{first}.*; unexpected 'more'$"):
        weights.load(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (CONFIG, "{", "config.json must be JSON"),
        (CONFIG, "[" * 10**5, "config.json must be JSON"),
        (CONFIG, "[]", r"config.json must be an object of JSON, got \[\]"),
        (CONFIG, '{"a": 1, "a": 2}', "config.json must be JSON: 'a' occurs twice"),
        (CONFIG, "{}", "the config must have model_type, one of deformable_detr, rt_detr"),
        (CONFIG, {"num_labels": 5}, r"config.json does not fit: num_labels must be 7, .*, got 5"),
        (PROCESSOR, "[]", r"preprocessor_config.json must be an object"),
        (NESTED, '{"image_processor": {"scale": 2}}', r"/processor_config.json does not fit: .*, got 'scale'"),
        (NESTED, '{"image_processor": "Any"}', r"image_processor in .* must be an object of JSON, got 'Any'"),
        *(
            (INDEX, index, r"model.safetensors.index.json must ")
            for index in ("[]", "{}", '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}')
        ),
        (INDEX, '{"weight_map": {"a": "a.pkl"}}', r"a.pkl' may hold code.*, load it in Python"),
        ("adapter_config.json", "{}", r"must have no adapter_config.json: `merge_and_unload` of peft"),
    ],
)
def test_files_that_are_refused(name, content, message, folder):
    if name == INDEX:
        (folder / "model.safetensors").unlink()
    if isinstance(content, dict):
        content = json.dumps(json.loads((folder / name).read_text()) | content)
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        weights.load(folder)


@pytest.mark.parametrize(("end", "value"), [("backbone.*running_mean", np.nan), ("class_embed.*weight", np.inf)])
def test_weights_that_are_not_finite(end, value, folder):
    arrays = safetensors.load_file(folder / "model.safetensors")
    name = next(name for name in arrays if re.search(end, name))
    arrays[name].flat[0] = value
    safetensors.save_file(arrays, folder / "model.safetensors")
    with pytest.raises(ValueError, match=f"{folder.name} must be finite, but those in '{name}' are not"):
        weights.load(folder)


@pytest.mark.parametrize("prefix", [*(slow(one) for one in ("module.", "_orig_mod.")), "_orig_mod.module."])
def test_weights_of_parallel_and_compiled_models(prefix, folder):
    path, missing = folder / "model.safetensors", "model.enc_output.0.weight"
    arrays = {prefix + name: array for name, array in safetensors.load_file(path).items()}
    (folder / "pytorch_model.bin").touch()  # which is not read
    safetensors.save_file(arrays, path)
    jax.tree.map(assert_array_equal, weights.load(folder).variables, weights.load(RT_DETR).variables)
    del arrays[prefix + missing]
    safetensors.save_file(arrays, path)
    with pytest.raises(ValueError, match=rf"^{folder} does not fit: .* missing '{missing}'; unexpected nothing"):
        weights.load(folder)


@pytest.mark.parametrize(
    "settings, white",
    [
        ({"image_mean": [0.5] * 3}, None),
        ({"image_mean": [124.0] * 3}, 1),
        ({"image_mean": 0.5, "do_rescale": False}, 255),
    ],
)
def test_what_is_said_of_settings(settings, white, folder, caplog):
    """Means of another unit, and the architecture of another model."""
    config = json.loads((folder / CONFIG).read_text()) | {"architectures": ["RTDetrForObjectDetection"]}
    (folder / CONFIG).write_text(json.dumps(config))
    (folder / PROCESSOR).write_text(json.dumps(settings | {"do_normalize": True}))
    weights.load(folder)
    said = f"{folder}/config.json has architectures ['RTDetrForObjectDetection']; its model_type is used"
    assert caplog.messages[0] == said
    of_means = [message for message in caplog.messages if "image_mean" in message]
    assert [f"images are from 0 to {white} before" in message for message in of_means] == [True] * (white is not None)


@pytest.mark.slow
def test_other_classes():
    checkpoint = weights.load(RT_DETR)
    known = checkpoint.labels[3]
    adapted = weights.adapt(checkpoint, ["cat", known], jax.random.key(0))
    assert adapted.labels == ["cat", known] and len(checkpoint.labels) == 7
    old, new = (jax.tree_util.tree_flatten_with_path(one.variables)[0] for one in (checkpoint, adapted))
    of_classes = ("class_embed", "enc_score_head", "denoising_class_embed")
    for (path, before), (_, after) in zip(old, new, strict=True):
        if any(entry.key.startswith(of_classes) for entry in path):
            assert after.shape != before.shape
        else:
            assert_array_equal(after, before)
    params, trained = adapted.variables["params"], checkpoint.variables["params"]
    np.testing.assert_allclose(params["class_embed_0"]["bias"][0], -np.log(99), rtol=1e-6)
    for name in ("class_embed_0", "enc_score_head"):
        assert_array_equal(params[name]["kernel"][:, 1], trained[name]["kernel"][:, 3])
    embeddings = [of["denoising_class_embed"]["embedding"] for of in (params, trained)]
    assert_array_equal(embeddings[0][1:], embeddings[1][jnp.array([3, 7])])  # 7: of padding
    assert weights.adapt(checkpoint, checkpoint.labels, jax.random.key(0)) is checkpoint
    weights.fill(adapted.model, weights.to_file(adapted), adapted.config)


def test_settings_of_other_systems(folder):
    """A byte order mark before UTF-8; and in the file of transformers 5, settings that come before the other ones."""
    (folder / CONFIG).write_text((RT_DETR / CONFIG).read_text(), "utf-8-sig")
    (folder / PROCESSOR).write_text('{"size": [64, 32]}')
    for content, size in ({"processor_class": "Any"}, [64, 32]), ({"image_processor": {"size": [32, 96]}}, [32, 96]):
        (folder / NESTED).write_text(json.dumps(content))
        found = weights.load(folder)
        assert found.processor.settings["size"] == size and found.config == weights.load(RT_DETR).config


def test_folders_that_are_no_checkpoints(folder):
    hint = r"PekingU/rtdetr_v2_r18vd must be a folder with config.json.*; `hf download NAME"
    with pytest.raises(FileNotFoundError, match=hint):
        weights.load("PekingU/rtdetr_v2_r18vd")
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"must have model.safetensors or model.safetensors.index.json or"):
        weights.load(folder)


NAMED = {"id2label": {"0": "red", "1": "N/A", "2": "N/A"}}


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({}, ["LABEL_0", "LABEL_1"]),
        ({"num_labels": 1}, ["LABEL_0"]),
        (NAMED | {"num_labels": 3, "label2id": {"red": 0, "N/A": 2}}, ["red", "N/A", "N/A"]),
        (NAMED | {"label2id": {"red": "0", "N/A": "1"}}, ["red", "N/A", "N/A"]),  # as in tutorials of transformers
        ({"id2label": {1: "b", 0: "a"}, "label2id": None}, ["a", "b"]),
    ],
)
def test_names_of_classes(config, names):
    assert label_names(config) == names


@pytest.mark.parametrize(
    ("field", "values"),
    {
        "id2label": [{"0": "red", "2": "yellow"}, {"0": "red", "00": "yellow"}, {"0": None}, {"red": "red"}, {}, 2],
        "num_labels": [5, "3"],
        "label2id": [{"red": 1, "N/A": 2}, {"red": 0}, {"red": 0, "N/A": 1, "blue": 3}, {"red": None, "N/A": 1}, 2],
    }.items(),
)
def test_names_of_classes_that_contradict(field, values):
    for value in values:
        with pytest.raises(ValueError, match=f"^{field} must "):
            label_names(NAMED | {field: value})
    for count in (0, -1, "2", True):
        with pytest.raises(ValueError, match="num_labels must be a positive integer"):
            label_names({"num_labels": count})


def test_more_proposals_than_pixels():
    """Parameters are made for small images, which have fewer pixels than proposals are asked for."""
    config = json.loads((FOLDERS[1] / CONFIG).read_text())
    backbone = config["backbone_config"] | {"out_features": ["stage4"], "out_indices": [4]}
    config |= {"num_feature_levels": 1, "two_stage_num_proposals": 500, "backbone_config": backbone}
    weights.shapes(weights.make_model(config))
