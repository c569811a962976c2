"""Deformable DETR and RT-DETR in Flax, beside transformers with the same checkpoints."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors import numpy as safetensors

from examples.detr.config import RESNET50, DeformableDetrConfig, backbone_layout
from examples.detr.names import in_file, rename, renamed
from examples.detr.weights import fill, load, make_model
from tests.helpers import detectors
from tests.helpers.aggregation.cases import GOLDEN
from tests.helpers.slow import slow_unless

pytestmark = pytest.mark.platforms("cpu")


@functools.cache
def read(name):
    """The config, the state dict in memory and the meta data of a model without variants."""
    with np.load(GOLDEN / "model" / f"{name}.npz") as file:
        arrays = dict(file)
    meta = json.loads(str(arrays.pop("meta")))
    config = meta["config"] | {"backbone_config": meta["backbone"], "num_labels": arrays["logits"].shape[-1]}
    state = {key.removeprefix("state/"): array for key, array in arrays.items() if key.startswith("state/")}
    return config, state, meta


BY_DEFAULT = ("rt_detr_v2_discrete",)


@pytest.mark.parametrize("name", [slow_unless(name in BY_DEFAULT, name) for name in detectors.CONFIGS])
def test_variants(name, x64):
    shapes, logits, boxes = detectors.read(name)
    config = detectors.CONFIGS[name]
    tolerance = 1e-6 if config.get("two_stage") else 1e-10  # transformers embeds the proposals of two stages in float32
    pixels, mask = detectors.images(config)
    model, arguments = make_model(config), (pixels.astype("float64"), mask)
    variables = fill(model, detectors.state(config, shapes), config, "float64")
    outputs = jax.jit(model.apply)(variables, *arguments[: 1 + (config["model_type"] == "deformable_detr")])
    assert_allclose(outputs.logits, logits, rtol=0, atol=tolerance)
    assert_allclose(outputs.boxes, boxes, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["deformable_detr", "rt_detr_v2"])
def test_names_in_files(name):
    config, state, meta = read(name)
    model = make_model(config)
    expected = fill(model, state, config)
    places = {renamed(key): array for key, array in state.items()}
    shapes = {renamed(key): shape for key, shape in meta["state_dict"]}
    on_disk = {key: places.get(renamed(key), np.zeros(shapes[renamed(key)])) for key in meta["keys_on_disk"]}
    assert set(on_disk) - set(state), "the names differ"
    jax.tree.map(assert_array_equal, fill(model, on_disk, config), expected)


def test_heads():
    """All layers share one head, or each has its own; files have copies of them under several names."""
    first, second = np.ones(2), np.zeros(2)
    names = ["class_embed.0.bias", "class_embed.1.bias", "model.decoder.class_embed.1.bias"]
    separate = dict(zip(names, (first, second, second), strict=True))
    assert rename(separate, {"class_embed": 2}) == {name: name for name in names[:2]}
    assert rename({name: first for name in names}, {"class_embed": 1}) == {names[0]: names[0]}
    copied = rename({names[0]: first}, {"class_embed": 3})
    assert copied == {f"class_embed.{index}.bias": names[0] for index in range(3)}
    unknown = np.full(2, np.nan)
    assert rename({name: unknown for name in names}, {"class_embed": 1}) == {names[0]: names[0]}
    with pytest.raises(ValueError, match=r"'class_embed.0.bias' and 'class_embed.1.bias' are one parameter"):
        rename(separate, {"class_embed": 1})
    with pytest.raises(ValueError, match=r"'class_embed.1.bias' and 'model.decoder.class_embed.1.bias' are one"):
        rename(separate | {"class_embed.1.bias": first}, {"class_embed": 2})


def test_missing_and_unknown_names():
    config, state, _ = read("deformable_detr")
    model = make_model(config)
    missing = "model.encoder.layers.1.self_attn.value_proj.bias"
    without = {key: array for key, array in state.items() if key != missing}
    with pytest.raises(ValueError, match=f"missing '{missing}'; unexpected nothing$"):
        fill(model, without, config)
    unknown = "model.encoder.layers.2.fc1.bias"
    with pytest.raises(ValueError, match=f"missing nothing; unexpected '{unknown}'$"):
        fill(model, state | {unknown: np.ones(48)}, config)


DEEP, REFINE, RT_DETR = "deformable_detr_deep", "deformable_detr_refine", "rt_detr"
LW_DETR, RF_DETR, DEIM, LITE = "lw_detr", "rf_detr", "deimv2", "deimv2_lite"
TIMM, WIDE = (
    {"model_type": "timm_backbone", "backbone": "resnet50"},
    {"encoder_hidden_dim": 16, "decoder_in_channels": [16] * 3},
)


def resnet(**settings):
    return {"backbone_config": {"model_type": "resnet"} | settings}


def vit(name, **settings):
    return {"backbone_config": detectors.CONFIGS[name]["backbone_config"] | settings}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (REFINE, {"model_type": "detr"}, "model_type must be 'deformable_detr' or 'rt_detr' or 'rt_detr_v2' or"),
        (REFINE, {"position_embedding_type": "learned"}, "position_embedding_type must be 'sine' in the config"),
        (REFINE, {"dilation": True}, "dilation must be False in the config, got True"),
        (REFINE, {"activation_function": "mish"}, "activation_function must be 'relu' or 'silu' or 'swish' or 'gelu'"),
        (REFINE, {"two_stage": True, "with_box_refine": False}, "two_stage must also have with_box_refine"),
        (REFINE, resnet(model_type="swin"), "backbone_config.model_type must be resnet, .* got 'swin'"),
        (REFINE, resnet(depths=[1, 1, 0, 1]), "depths must have a positive number for each of four stages"),
        (REFINE, resnet(hidden_sizes=[8, 12, 16]), "hidden_sizes must have a positive number for each of four stages"),
        (REFINE, resnet(out_features=["stem", "stage4"]), "out_features and out_indices must name stages in"),
        (REFINE, resnet(num_channels=1), "num_channels must be 3 in the config, got 1"),
        (REFINE, resnet(**TIMM, output_stride=16), "output_stride must be None in"),
        (DEEP, {"num_feature_levels": 2}, "num_feature_levels must be at least 3, the number of"),
        (DEEP, {"hidden_size": 64}, "hidden_size must be 32 in the config, got 64"),
        (DEEP, {"tie_word_embeddings": False}, "tie_word_embeddings must be True in the config"),
        (DEEP, {"backbone_config": None, "use_timm_backbone": False}, "use_timm_backbone must be True"),
        (RT_DETR, {"num_feature_levels": 1}, "num_feature_levels must be at least 3, the number of"),
        (RT_DETR, {"num_attention_heads": 2}, "num_attention_heads must be 4 in the config, got 2"),
        (RT_DETR, {"tie_word_embeddings": False}, "tie_word_embeddings must be True in the config"),
        (RT_DETR, {"backbone_config": None, "backbone": "resnet50"}, "backbone must be None in the config"),
        (RT_DETR, {"anchor_image_size": [64, 64]}, "anchor_image_size must be None in the config"),
        (RT_DETR, {"encoder_in_channels": [12, 16]}, r"len\(encoder_in_channels\) must be 3 in the config, got 2"),
        (RT_DETR, {"decoder_in_channels": [32, 32]}, r"decoder_in_channels must be \[32, 32, 32\] in the config"),
        (RT_DETR, WIDE | {"num_feature_levels": 5}, "encoder_hidden_dim must be 32 in the config, got 16"),
        (LW_DETR, {"projector_scale_factors": [1.0, 4.0]}, "projector_scale_factors must be some of 0.5, 1.0 and 2.0"),
        (LW_DETR, {"projector_scale_factors": []}, "projector_scale_factors must be some of 0.5, 1.0 and 2.0"),
        (LW_DETR, {"num_feature_levels": 2}, "num_feature_levels must be 1 in the config, got 2"),
        (LW_DETR, {"attention_bias": False}, "attention_bias must be True in the config"),
        (LW_DETR, vit(LW_DETR, num_windows=8), "num_windows must be a square number in the config, got 8"),
        (LW_DETR, vit(LW_DETR, qkv_bias=False), "qkv_bias must be True in the config"),
        (LW_DETR, vit(RF_DETR), "model_type must be 'lw_detr_vit' in the config, got 'rf_detr_dinov2'"),
        (RF_DETR, vit(RF_DETR, num_register_tokens=4), "num_register_tokens must be 0 in the config, got 4"),
        (RF_DETR, vit(RF_DETR, drop_path_rate=0.1), "drop_path_rate must be 0 or 0.0 in the config, got 0.1"),
        (RF_DETR, {"num_feature_levels": 2}, "num_feature_levels must be 1 in the config, got 2"),
        (DEIM, {"encoder_fuse_op": "cat"}, "encoder_fuse_op must be 'sum' in the config, got 'cat'"),
        (DEIM, {"encoder_type": "other"}, "encoder_type must be 'hybrid' or 'lite' in the config, got 'other'"),
        (DEIM, {"backbone_config": {"model_type": "dinov3_vit"}}, "model_type must be 'hgnet_v2' in the config, got"),
        (LITE, vit(LITE, out_indices=[2, 3]), r"len\(encoder_in_channels\) must be 2 in the config, got 1"),
        (LITE, vit(LITE, out_indices=[2, 3]) | {"encoder_in_channels": [12, 16]}, r"len\(out_indices\) must be 1 in"),
        (LITE, {"decoder_in_channels": [16]}, r"decoder_in_channels must be \[16, 16\] in the config"),
        ("rt_detr_v2_discrete", {"decoder_n_levels": 3}, "decoder_n_levels must be 4 in the config, got 3"),
        *(
            (RT_DETR, {name: value}, f"{name} must be like .* in the config, got")
            for name, value in (
                ("decoder_layers", 2.0),
                ("num_queries", -3),
                ("encode_proj_layers", 2),
                ("d_model", [16]),
            )
        ),
    ],
)
def test_configs_that_are_refused(name, changes, message):
    make_model(detectors.CONFIGS[name])
    with pytest.raises(ValueError, match=message):
        make_model(detectors.CONFIGS[name] | changes)


def test_stages_of_backbones():
    for named, expected in (
        ({}, (4,)),
        ({"out_indices": [-2, 4]}, (3, 4)),
        ({"out_features": ["stage1", "stage3"], "out_indices": [1, 3]}, (1, 3)),
    ):
        assert backbone_layout({"model_type": "resnet"} | named).out_indices == expected
    timm = {"backbone": "resnet18", "backbone_kwargs": {"out_indices": [1, -1]}}
    assert DeformableDetrConfig.from_json(timm).backbone.out_indices == (1, 4)


@pytest.mark.parametrize("name", [REFINE, DEEP, RT_DETR, LW_DETR, DEIM, LITE])
def test_names_are_those_of_the_file(name):
    config, keys = detectors.CONFIGS[name], [key for key in detectors.read(name)[0] if "num_batches" not in key]
    assert len(keys) > 50 and [in_file(renamed(key, config["model_type"]), config) for key in keys] == keys


@pytest.mark.slow
def test_settings_in_files(tmp_path):
    """A file has some settings as arrays. Those of D-FINE's bins hold, and quotients must be those of the config."""
    name = "d_fine_two_maps"
    config, shapes = detectors.CONFIGS[name], detectors.read(name)[0]
    detectors.write(tmp_path, config, shapes)
    (tmp_path / "config.json").write_text(json.dumps(config | {"up": 0.9, "reg_scale": 2.0}))
    read_back = load(tmp_path)
    assert read_back.model.config.distribution == make_model(config).config.distribution
    assert_allclose([read_back.config[key] for key in ("up", "reg_scale")], [0.3, -3.7], rtol=1e-6)
    with pytest.raises(ValueError, match=r"'model.decoder.up' has other values in the checkpoint"):
        fill(make_model(config), detectors.state(config | {"up": 0.9}, shapes), config)
    quotients = "model.decoder.layers.1.encoder_attn.num_points_scale"
    state = detectors.state(config, shapes)
    safetensors.save_file(state | {quotients: state[quotients] / 2}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"'{quotients}' has other values in the checkpoint than follow from its"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["rt_detr", "rf_detr_windows"])
def test_sides_of_images(name):
    config = detectors.CONFIGS[name]
    with pytest.raises(ValueError, match=r"sides divisible by 32, got shape \(1, 64, 80, 3\)"):
        jax.eval_shape(make_model(config).init, jax.random.key(0), jnp.zeros((1, 64, 80, 3)))


def test_defaults_of_old_configs():
    """Old files on the hub name a network of timm, or nothing at all."""
    assert DeformableDetrConfig.from_json({}).backbone == RESNET50
    assert make_model({"model_type": "lw_detr"}).config.backbone.out_indices == (2, 4, 5, 9)
    assert make_model({"model_type": "rf_detr"}).config.backbone.windowed == (0, 1, 3, 4, 6, 7, 9, 10)
    layout = make_model({"model_type": "rf_detr", "backbone_config": {"out_indices": [3, 6, 9, 12]}}).config.backbone
    assert (layout.windowed, layout.hidden_size, layout.grid) == ((0, 1, 2, 4, 5, 7, 8, 10, 11), 768, 16)
    single = DeformableDetrConfig.from_json({"backbone": "resnet101", "num_feature_levels": 1}).backbone
    assert (single.depths, single.out_indices) == ((3, 4, 23, 3), (4,))


@pytest.mark.slow
def test_layers_after_the_one_for_inference_do_not_run():
    config = detectors.CONFIGS["d_fine_affine"] | {"eval_idx": 0}
    model = make_model(config)
    variables = fill(model, detectors.state(config, detectors.read("d_fine_affine")[0]), config)
    images = detectors.images(config)[0].astype(np.float32)
    first = jax.jit(model.apply)(variables, images)
    whole = jax.jit(make_model(config | {"eval_idx": -1}).apply)(variables, images)
    assert len(first.layers.boxes) == 1 and len(whole.layers.boxes) == 2
    assert_allclose(first.boxes, whole.layers.boxes[0], atol=1e-5)
