"""Checkpoints of detection transformers: read, written and with other classes."""

import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

pytest.importorskip("optax")
pytest.importorskip("matplotlib")
pytest.importorskip("safetensors")

from safetensors import numpy as safetensors

from examples.detr import names, weights
from examples.detr.config import label_names
from tests.helpers import detr_training

pytestmark = pytest.mark.platforms("cpu")

NAMES = ("deformable_detr", "deformable_detr_two_stage", "rt_detr_v2", "d_fine_simple")
FOLDERS = [detr_training.FOLDER / name for name in NAMES]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_is_written_is_what_was_read(folder, tmp_path):
    weights.save(tmp_path, weights.load(folder))
    assert json.loads((tmp_path / "config.json").read_text()) == json.loads((folder / "config.json").read_text())
    expected = safetensors.load_file(folder / "model.safetensors")
    found = safetensors.load_file(tmp_path / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert_array_equal(found[name], array, err_msg=name)
        assert found[name].dtype == array.dtype


def test_names_of_heads():
    """In transformers, those of the classes are in the decoder only with two stages."""
    config = {"model_type": "deformable_detr", "with_box_refine": True, "two_stage": False}
    assert names.in_file("class_embed.1.weight", config) == "class_embed.1.weight"
    assert names.in_file("bbox_embed.1.layers.0.bias", config) == "model.decoder.bbox_embed.1.layers.0.bias"


def test_a_file_in_parts(tmp_path):
    folder = FOLDERS[2]
    arrays = safetensors.load_file(folder / "model.safetensors")
    parts = [dict(list(arrays.items())[start::2]) for start in (0, 1)]
    index = {}
    for number, part in enumerate(parts):
        safetensors.save_file(part, tmp_path / f"model-{number}.safetensors")
        index |= dict.fromkeys(part, f"model-{number}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    shutil.copy(folder / "config.json", tmp_path)
    expected = weights.load(folder).variables
    jax.tree.map(assert_array_equal, weights.load(tmp_path).variables, expected)
    other = {name: np.asarray(array + 1) for name, array in parts[0].items()}
    safetensors.save_file(other | parts[1], tmp_path / "model-1.safetensors")  # the index says which are meant
    jax.tree.map(assert_array_equal, weights.load(tmp_path).variables, expected)
    first, *_ = parts[1]
    safetensors.save_file({"more": np.ones(1)} | other, tmp_path / "model-1.safetensors")
    with pytest.raises(ValueError, match=rf"index.json do not fit: missing .*{first}.*; unexpected 'more'$"):
        weights.load(tmp_path)


@pytest.mark.parametrize(
    "index", ["[]", "{}", '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "b", "a": "c"}}']
)
def test_an_index_of_nothing(index, tmp_path):
    shutil.copy(FOLDERS[2] / "config.json", tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match=r"model.safetensors.index.json must "):
        weights.load(tmp_path)


@pytest.mark.parametrize(("end", "value"), [("backbone.*running_mean", np.nan), ("class_embed.*weight", np.inf)])
def test_weights_that_are_not_finite(end, value, tmp_path):
    arrays = safetensors.load_file(FOLDERS[2] / "model.safetensors")
    name = next(name for name in arrays if re.search(end, name))
    arrays[name].flat[0] = value
    safetensors.save_file(arrays, tmp_path / "model.safetensors")
    shutil.copy(FOLDERS[2] / "config.json", tmp_path)
    with pytest.raises(ValueError, match=f"{tmp_path.name} must be finite, but those in '{name}' are not"):
        weights.load(tmp_path)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_weights_of_parallel_and_compiled_models(prefix, tmp_path):
    path, missing = tmp_path / "model.safetensors", "model.enc_output.0.weight"
    arrays = {prefix + name: array for name, array in safetensors.load_file(FOLDERS[2] / path.name).items()}
    shutil.copy(FOLDERS[2] / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").touch()  # which is not read
    safetensors.save_file(arrays, path)
    jax.tree.map(assert_array_equal, weights.load(tmp_path).variables, weights.load(FOLDERS[2]).variables)
    del arrays[prefix + missing]
    safetensors.save_file(arrays, path)
    with pytest.raises(ValueError, match=rf"^{tmp_path} does not fit: .* missing '{missing}'; unexpected nothing"):
        weights.load(tmp_path)


@pytest.mark.parametrize(
    "settings, white",
    [
        ({"image_mean": [0.5] * 3}, None),
        ({"image_mean": [124.0] * 3}, 1),
        ({"image_mean": 0.5, "do_rescale": False}, 255),
    ],
)
def test_means_of_another_unit(settings, white, tmp_path, caplog):
    shutil.copy(FOLDERS[2] / "config.json", tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings | {"do_normalize": True}))
    with pytest.raises(FileNotFoundError, match=r"must have model.safetensors"):
        weights.load(tmp_path)
    said = [f"images are from 0 to {white} before" in message for message in caplog.messages if "image_mean" in message]
    assert said == [True] * (white is not None)


def test_folders_of_other_tools(tmp_path, caplog):
    config = json.loads((FOLDERS[2] / "config.json").read_text()) | {"architectures": ["RTDetrForObjectDetection"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "a.pkl"}}')
    with pytest.raises(ValueError, match=r"a.pkl' may hold code.*, load it in Python"):
        weights.load(tmp_path)
    said = f"{tmp_path}/config.json has architectures ['RTDetrForObjectDetection']; its model_type is used"
    assert caplog.messages[0] == said
    (tmp_path / "config.json").unlink()
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"must have no adapter_config.json: `merge_and_unload` of peft"):
        weights.load(tmp_path)


@pytest.mark.slow
def test_other_classes():
    checkpoint = weights.load(FOLDERS[2])
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "config.json must be JSON"),
        ("[" * 10**5, "config.json must be JSON"),
        ("[]", r"config.json must be an object of JSON, got \[\]"),
        ('{"a": 1, "a": 2}', "config.json must be JSON: 'a' occurs twice"),
        ("{}", "the config must have model_type, one of deformable_detr, rt_detr"),
    ],
)
def test_configs_that_are_none(content, message, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        weights.load(tmp_path)


def test_files_of_other_systems(tmp_path):
    """A byte order mark before UTF-8, and another processor file that is no object."""
    shutil.copy(FOLDERS[2] / "model.safetensors", tmp_path)
    (tmp_path / "config.json").write_text((FOLDERS[2] / "config.json").read_text(), "utf-8-sig")
    assert weights.load(tmp_path).config == weights.load(FOLDERS[2]).config
    (tmp_path / "preprocessor_config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"preprocessor_config.json must be an object"):
        weights.load(tmp_path)


def test_the_processor_file_of_transformers_5(tmp_path):
    """Settings inside of it come before those of the other file."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FOLDERS[2] / name, tmp_path)
    path, other = tmp_path / "processor_config.json", tmp_path / "preprocessor_config.json"
    other.write_text('{"size": [64, 32]}')
    for content, size in (
        ({"processor_class": "Any"}, [64, 32]),
        ({"image_processor": {"size": [32, 96]}}, [32, 96]),
    ):
        path.write_text(json.dumps(content))
        assert weights.load(tmp_path).processor.settings["size"] == size
    path.write_text('{"image_processor": {"scale": 2}}')
    with pytest.raises(ValueError, match=r"/processor_config.json does not fit: .*, got 'scale'"):
        weights.load(tmp_path)
    path.write_text('{"image_processor": "Any"}')
    with pytest.raises(ValueError, match=r"image_processor in .* must be an object of JSON, got 'Any'"):
        weights.load(tmp_path)


def test_a_name_on_the_hub():
    with pytest.raises(FileNotFoundError, match=r"PekingU/rtdetr_v2_r18vd must be a folder .*; `hf download NAME"):
        weights.load("PekingU/rtdetr_v2_r18vd")


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
        "id2label": [
            {"0": "red", "2": "yellow"},
            {"1": "red", "2": "yellow"},
            {"-1": "red", "0": "yellow"},
            {"0": "red", 0: "red"},
            {"0": "red", "00": "yellow"},
            {"0": "red", "1": None},
            {"0": 3},
            {"red": "red"},
            {},
            ["red", "yellow"],
            2,
        ],
        "num_labels": [5, 2, "3"],
        "label2id": [
            {"red": 1, "N/A": 2},
            {"red": 0},
            {"red": 0, "N/A": 1, "blue": 3},
            {"red": None, "N/A": 1},
            ["red"],
        ],
    }.items(),
)
def test_names_of_classes_that_contradict(field, values):
    for value in values:
        with pytest.raises(ValueError, match=f"^{field} must "):
            label_names(NAMED | {field: value})


def test_the_file_with_wrong_names_of_classes(tmp_path):
    config = json.loads((FOLDERS[2] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_labels": 5}))
    with pytest.raises(ValueError, match=r"config.json does not fit: num_labels must be 7, .*, got 5"):
        weights.load(tmp_path)
    for count in (0, -1, "2", True):
        with pytest.raises(ValueError, match="num_labels must be a positive integer"):
            label_names({"num_labels": count})


def test_more_proposals_than_pixels():
    """Parameters are made for small images, which have fewer pixels than proposals are asked for."""
    config = json.loads((FOLDERS[1] / "config.json").read_text())
    backbone = config["backbone_config"] | {"out_features": ["stage4"], "out_indices": [4]}
    config |= {"num_feature_levels": 1, "two_stage_num_proposals": 500, "backbone_config": backbone}
    weights.shapes(weights.make_model(config))
