"""Small random checkpoints of detectors in the layout of transformers, and their golden outputs."""

import json
import pathlib

import numpy as np

from tests.helpers import checkpoints

GOLDEN = pathlib.Path(__file__).parents[1] / "examples/golden"

_RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [8, 12, 16, 24],
    "depths": [1, 2, 1, 1],
    "out_features": ["stage2", "stage3", "stage4"],
}
_SHARED = {
    "id2label": {str(index): f"class {index}" for index in range(5)},
    "d_model": 32,
    "encoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_layers": 2,
    "decoder_ffn_dim": 48,
    "decoder_attention_heads": 4,
    "decoder_n_points": 3,
    "num_queries": 20,
}
_DEFORMABLE_DETR = _SHARED | {
    "model_type": "deformable_detr",
    "backbone_config": _RESNET | {"model_type": "resnet", "layer_type": "basic"},
    "use_timm_backbone": False,
    "encoder_layers": 1,
    "with_box_refine": True,
}
_RT_DETR = _SHARED | {
    "backbone_config": _RESNET | {"model_type": "rt_detr_resnet", "layer_type": "bottleneck"},
    "encoder_hidden_dim": 32,
    "encoder_in_channels": [12, 16, 24],
    "decoder_in_channels": [32, 32, 32],
}

CONFIGS = {
    "deformable_detr_refine": _DEFORMABLE_DETR | {"num_feature_levels": 5},
    "deformable_detr_two_stage": _DEFORMABLE_DETR
    | {"two_stage": True, "two_stage_num_proposals": 20, "activation_function": "gelu"},
    "rt_detr": _RT_DETR
    | {
        "model_type": "rt_detr",
        "layer_norm_eps": 1e-2,
        "batch_norm_eps": 1e-2,
        "positional_encoding_temperature": 100,
        "encode_proj_layers": [1, 2],
        "encoder_layers": 2,
        "encoder_activation_function": "relu",
        "activation_function": "gelu",
        "decoder_activation_function": "silu",
        "num_denoising": 0,
    },
    "rt_detr_v2_discrete": _RT_DETR
    | {
        "model_type": "rt_detr_v2",
        "backbone_config": _RT_DETR["backbone_config"] | {"downsample_in_bottleneck": True},
        "decoder_method": "discrete",
        "decoder_offset_scale": 0.75,
        "num_feature_levels": 4,
        "decoder_n_levels": 4,
    },
}

CONFIGS["d_fine_affine"] = _SHARED | {
    "model_type": "d_fine",
    "backbone_config": {
        "model_type": "hgnet_v2",
        "stem_channels": [3, 6, 8],
        "stage_in_channels": [8, 10, 12, 16],
        "stage_mid_channels": [6, 6, 8, 8],
        "stage_out_channels": [10, 12, 16, 24],
        "stage_num_blocks": [1, 1, 2, 1],
        "stage_numb_of_layers": [2, 1, 1, 2],
        "hidden_sizes": [10, 12, 16, 24],
        "depths": [1, 1, 2, 1],
        "use_learnable_affine_block": True,
        "out_features": ["stage2", "stage3", "stage4"],
    },
    "encoder_hidden_dim": 16,
    "encoder_in_channels": [12, 16, 24],
    "decoder_in_channels": [16, 16, 16],
    "decoder_n_points": [3, 2, 1],
    "depth_mult": 0.34,
    "hidden_expansion": 0.5,
    "max_num_bins": 8,
    "reg_scale": 3.0,
    "up": 0.4,
    "top_prob_values": 2,
    "lqe_hidden_dim": 12,
}
CONFIGS |= {
    "deformable_detr_deep": _DEFORMABLE_DETR
    | {
        "backbone_config": {
            "model_type": "rt_detr_resnet",
            "layer_type": "basic",
            "embedding_size": 8,
            "hidden_sizes": [8, 12, 12, 24],
            "depths": [1, 2, 1, 1],
            "out_indices": [-3, -2, -1],
        },
        "num_feature_levels": 5,
    },
    "d_fine_two_maps": CONFIGS["d_fine_affine"]
    | {
        "backbone_config": CONFIGS["d_fine_affine"]["backbone_config"] | {"out_features": ["stage3", "stage4"]},
        "encoder_in_channels": [16, 24],
        "decoder_in_channels": [16, 16],
        "encode_proj_layers": [1],
        "layer_norm_eps": 1e-2,
        "max_num_bins": 6,
        "reg_scale": -3.7,
        "up": 0.3,
    },
}


def images(config):
    """Two images [2, height, width, 3], and their mask.

    A Deformable DETR sees a part of the second image. The sizes of its maps do not divide that of the images. RT-DETR's
    images are so wide that anchors on the border are too near to it to be used.
    """
    deformable_detr = config["model_type"] == "deformable_detr"
    image = checkpoints.image(90, 122) if deformable_detr else checkpoints.image(64, 416)
    pixels = np.concatenate([image, image[:, ::-1]])
    mask = np.ones(pixels.shape[:3], np.int32)
    if deformable_detr:
        mask[1, 66:] = mask[1, :, 80:] = 0
    return pixels * mask[..., None].astype(np.float32), mask


def write(folder, config, shapes):
    """Writes a checkpoint with random arrays of the given shapes."""
    from safetensors.numpy import save_file

    (folder / "config.json").write_text(json.dumps(config))
    save_file(state(config, shapes), folder / "model.safetensors")


def state(config, shapes):
    """Random arrays. Those that follow from the config, such as the quotients 1 / points, are what they must be."""
    arrays = checkpoints.fill(shapes)
    for name, shape in shapes.items():
        if "n_points_scale" in name:
            arrays[name] = np.full(shape, 1 / config["decoder_n_points"], np.float32)
        elif "num_points_scale" in name:
            arrays[name] = np.concatenate(
                [np.full(count, 1 / count, np.float32) for count in config["decoder_n_points"]]
            )
        elif name.endswith(("decoder.up", "decoder.reg_scale")):
            arrays[name] = np.float32([config[name.rpartition(".")[2]]])
    return arrays


def read(name):
    """(shapes, logits, boxes) of a golden file."""
    with np.load(GOLDEN / f"{name}.npz") as golden:
        return json.loads(str(golden["shapes"])), golden["logits"], golden["boxes"]
