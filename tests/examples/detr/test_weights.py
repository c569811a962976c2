"""Checkpoints of detection transformers: read, written and with other classes."""

import json
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
    jax.tree.map(assert_array_equal, weights.load(tmp_path).variables, weights.load(folder).variables)


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
        ("{}", "the config must have model_type, one of deformable_detr, rt_detr"),
    ],
)
def test_configs_that_are_none(content, message, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        weights.load(tmp_path)


def test_more_proposals_than_pixels():
    """Parameters are made for small images, which have fewer pixels than proposals are asked for."""
    config = json.loads((FOLDERS[1] / "config.json").read_text())
    backbone = config["backbone_config"] | {"out_features": ["stage4"], "out_indices": [4]}
    config |= {"num_feature_levels": 1, "two_stage_num_proposals": 500, "backbone_config": backbone}
    weights.shapes(weights.make_model(config))
