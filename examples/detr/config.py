"""The settings of the models, by the names that they have in a config.json of transformers."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from examples import hgnet
from examples.resnet.model import STAGES, Layout

from . import vit
from .layers import ACTIVATIONS
from .losses import Distribution

TIMM_DEPTHS = {f"resnet{depth}": stages for depth, stages in STAGES.items()}
TIMM_BASIC_DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
BASIC_SIZES = (64, 128, 256, 512)
COARSE_STAGES = (2, 3, 4)  # of a backbone, whose features the encoders take
RESNET50 = Layout(out_indices=COARSE_STAGES)
HGNET = hgnet.Layout()
RESNET50_VD = Layout(deep=True, out_indices=COARSE_STAGES)
# The backbones of a config that has none, and the sizes that one with a backbone need not state.
LW_DETR_VIT = vit.Layout()
DINOV2 = vit.Layout(
    is_dinov2=True,
    hidden_size=384,
    num_hidden_layers=12,
    num_attention_heads=6,
    patch_size=14,
    grid=37,
    windowed=(0, 1, 3, 4, 6, 7, 9, 10),
    out_indices=(2, 5, 8, 11),
    layer_scale=1.0,
)
VIT_SIZES = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}


def backbone_layout(config: Mapping[str, Any]) -> Layout:
    """The network that a `backbone_config` describes."""
    kind = config.get("model_type")
    if kind not in ("resnet", "rt_detr_resnet", "timm_backbone"):
        raise ValueError(f"backbone_config.model_type must be resnet, rt_detr_resnet or timm_backbone, got {kind!r}")
    if kind == "timm_backbone":
        require(config, backbone=(*TIMM_BASIC_DEPTHS, *TIMM_DEPTHS), num_channels=3, output_stride=None)
        name, out_indices = config["backbone"], _out_indices(config)
        if name in TIMM_BASIC_DEPTHS:
            return Layout(False, 64, BASIC_SIZES, TIMM_BASIC_DEPTHS[name], "basic", out_indices=out_indices)
        return Layout(depths=TIMM_DEPTHS[name], out_indices=out_indices)
    layer_types = ("bottleneck", "basic")
    require(config, num_channels=3, layer_type=layer_types, hidden_act="relu", downsample_in_first_stage=False)
    for name in ("hidden_sizes", "depths"):
        values = config.get(name) or BASIC_SIZES
        if len(values) != len(BASIC_SIZES) or min(values) < 1:
            raise ValueError(f"{name} must have a positive number for each of four stages in the config, got {values}")
    return Layout(**_known(Layout, config) | {"deep": kind == "rt_detr_resnet", "out_indices": _out_indices(config)})


def _out_indices(config: Mapping[str, Any], stages: int = 4) -> tuple[int, ...]:
    """The stages whose features a backbone returns, by default the last one."""
    indices = config.get("out_indices") or [-1]
    if names := config.get("out_features"):
        indices = [0 if name == "stem" else int(re.sub("stage|layer", "", name)) for name in names]
    found = tuple(index % (stages + 1) for index in indices)
    if 0 in found:
        raise ValueError(f"out_features and out_indices must name stages in the config, not the stem, got {indices}")
    return found


@dataclasses.dataclass(frozen=True)
class DeformableDetrConfig:
    """Deformable DETR; `with_box_refine` and `two_stage` choose its variants."""

    backbone: Layout = RESNET50
    num_labels: int = 91
    num_queries: int = 300
    d_model: int = 256
    activation_function: str = "relu"
    num_feature_levels: int = 4
    encoder_layers: int = 6
    encoder_ffn_dim: int = 1024
    encoder_attention_heads: int = 8
    encoder_n_points: int = 4
    decoder_layers: int = 6
    decoder_ffn_dim: int = 1024
    decoder_attention_heads: int = 8
    decoder_n_points: int = 4
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    with_box_refine: bool = False
    two_stage: bool = False
    two_stage_num_proposals: int = 300

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """The settings in a config.json."""
        require(config, position_embedding_type="sine", dilation=False, tie_word_embeddings=True)
        require(config, activation_function=tuple(ACTIVATIONS))
        if config.get("two_stage") and not config.get("with_box_refine"):
            raise ValueError("a config with two_stage must also have with_box_refine")
        if not config.get("backbone_config"):
            require(config, use_timm_backbone=True)
        levels = [2, 3, 4] if config.get("num_feature_levels", cls.num_feature_levels) > 1 else [4]
        timm = {"model_type": "timm_backbone", "backbone": config.get("backbone") or "resnet50"}
        timm |= config.get("backbone_kwargs") or {"out_indices": levels}
        backbone = backbone_layout(config.get("backbone_config") or timm)
        settings = cls(**_known(cls, config) | {"backbone": backbone, "num_labels": len(label_names(config))})
        _check(settings, config, len(backbone.out_indices))
        return settings


@dataclasses.dataclass(frozen=True)
class RTDetrConfig:
    """RT-DETR and RT-DETRv2; the first has no `decoder_offset_scale`, and scales offsets as Deformable DETR does."""

    backbone: Layout = RESNET50_VD
    num_labels: int = 80
    num_queries: int = 300
    layer_norm_eps: float = 1e-5
    batch_norm_eps: float = 1e-5
    encoder_hidden_dim: int = 256
    encoder_layers: int = 1
    encoder_ffn_dim: int = 1024
    encoder_attention_heads: int = 8
    encoder_activation_function: str = "gelu"
    encode_proj_layers: tuple[int, ...] = (2,)
    positional_encoding_temperature: int = 10000
    activation_function: str = "silu"
    hidden_expansion: float = 1.0
    d_model: int = 256
    num_feature_levels: int = 3
    decoder_layers: int = 6
    decoder_ffn_dim: int = 1024
    decoder_attention_heads: int = 8
    decoder_activation_function: str = "relu"
    decoder_n_points: int = 4
    decoder_offset_scale: float | None = 0.5
    decoder_method: str = "default"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    freeze_backbone_batch_norms: bool = True
    num_denoising: int = 100
    label_noise_ratio: float = 0.5
    box_noise_scale: float = 1.0

    flips_negative_sizes: ClassVar = False  # of denoising queries
    without: ClassVar[dict[str, Any]] = {"eval_size": None}  # settings that have no other value

    @property
    def maps(self) -> int:
        """The number of maps that the encoder makes."""
        return len(self.backbone.out_indices)

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """The settings in a config.json."""
        require(config, normalize_before=False, anchor_image_size=None, learn_initial_query=False, **cls.without)
        require(config, tie_word_embeddings=True, decoder_method=("default", "discrete"))
        for part in ("encoder_", "", "decoder_"):
            require(config, **{f"{part}activation_function": tuple(ACTIVATIONS)})
        if not config.get("backbone_config"):
            require(config, backbone=None)
        known = _known(cls, config) | {"backbone": cls._backbone(config), "num_labels": len(label_names(config))}
        if config["model_type"] == "rt_detr":
            known["decoder_offset_scale"] = None
        settings = cls(**known)
        settings._check_maps(config)
        return settings

    @staticmethod
    def _backbone(config: Mapping[str, Any]) -> Any:
        default = {"model_type": "rt_detr_resnet", "out_indices": COARSE_STAGES}
        return backbone_layout(config.get("backbone_config") or default)

    def _check_maps(self, config: Mapping[str, Any]) -> None:
        """Raises if settings that follow from others in all models that transformers can run have other values."""
        _check(self, config, self.maps)
        maps, kind = self.maps, config["model_type"]
        stated = {
            "len(encoder_in_channels)": len(config.get("encoder_in_channels", [512, 1024, 2048])),
            "decoder_in_channels": list(config.get("decoder_in_channels", [256] * 3)),
            "decoder_n_levels": config.get("decoder_n_levels", 3),
            "encoder_hidden_dim": self.encoder_hidden_dim,
        }
        expected: dict[str, Any] = {"len(encoder_in_channels)": len(self.backbone.out_indices)}
        expected["decoder_in_channels"] = [self.encoder_hidden_dim] * maps
        if kind == "rt_detr_v2":
            expected["decoder_n_levels"] = self.num_feature_levels
        if kind not in ("d_fine", "deimv2") and self.num_feature_levels > maps + 1:
            expected["encoder_hidden_dim"] = self.d_model  # transformers makes further layers for d_model
        require(stated, **expected)


@dataclasses.dataclass(frozen=True)
class DFineConfig(RTDetrConfig):
    """D-FINE. `decoder_n_points` may be one number for each level."""

    backbone: hgnet.Layout = HGNET
    decoder_n_points: int | tuple[int, ...] = 4
    depth_mult: float = 1.0
    eval_idx: int = -1
    max_num_bins: int = 32
    up: float = 0.5
    reg_scale: float = 4.0
    top_prob_values: int = 4
    lqe_hidden_dim: int = 64
    lqe_layers: int = 2

    flips_negative_sizes: ClassVar = True
    share_bbox_head: ClassVar = False

    @property
    def distribution(self) -> Distribution:
        """The bins of distances."""
        # Files have these two in float32.
        return Distribution(self.max_num_bins, *(abs(float(np.float32(value))) for value in (self.up, self.reg_scale)))

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """The settings in a config.json."""
        require(config, layer_scale=(1, 1.0))
        return super().from_json(config)

    @staticmethod
    def _backbone(config: Mapping[str, Any]) -> Any:
        backbone = config.get("backbone_config") or {"out_indices": COARSE_STAGES}
        require(backbone, model_type="hgnet_v2", hidden_act="relu", num_channels=3)
        layout = hgnet.Layout(**_known(hgnet.Layout, backbone))
        return dataclasses.replace(layout, out_indices=_out_indices(backbone, len(layout.stage_out_channels)))


@dataclasses.dataclass(frozen=True)
class DeimConfig(DFineConfig):
    """DEIMv2 with an HGNetv2. The encoder of type "lite" makes two maps of one, and has no attention."""

    encoder_type: str = "hybrid"
    encoder_has_trailing_conv: bool = True
    use_gateway: bool = True
    share_bbox_head: bool = False

    without: ClassVar[dict[str, Any]] = {}  # with an `eval_size`, transformers leaves out positions in inference

    @property
    def maps(self) -> int:
        """The number of maps that the encoder makes."""
        return 2 if self.encoder_type == "lite" else super().maps

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """The settings in a config.json."""
        require(config, encoder_type=("hybrid", "lite"), encoder_fuse_op="sum")
        settings = super().from_json(config)
        if settings.encoder_type == "lite":
            require({"len(out_indices)": len(settings.backbone.out_indices)}, **{"len(out_indices)": 1})
        return settings


@dataclasses.dataclass(frozen=True)
class LwDetrConfig:
    """LW-DETR."""

    backbone: vit.Layout = LW_DETR_VIT
    num_labels: int = 91
    num_queries: int = 300
    group_detr: int = 13
    d_model: int = 256
    projector_scale_factors: tuple[float, ...] = (1.0,)
    hidden_expansion: float = 0.5
    c2f_num_blocks: int = 3
    activation_function: str = "silu"
    batch_norm_eps: float = 1e-5
    decoder_layers: int = 3
    decoder_ffn_dim: int = 2048
    decoder_self_attention_heads: int = 8
    decoder_cross_attention_heads: int = 16
    decoder_activation_function: str = "relu"
    decoder_n_points: int = 4
    dropout: float = 0.0
    attention_dropout: float = 0.0

    @property
    def activation_dropout(self) -> float:
        """Dropout in feed-forward networks, which is that of all else."""
        return self.dropout

    @property
    def decoder_attention_heads(self) -> int:
        """The heads of self attention."""
        return self.decoder_self_attention_heads

    @property
    def num_feature_levels(self) -> int:
        """The levels of the pyramid."""
        return len(self.projector_scale_factors)

    @property
    def stride(self) -> int:
        """By which the sides of images must be divisible."""
        return self.backbone.stride

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """The settings in a config.json."""
        require(config, attention_bias=True)
        for part in ("", "decoder_"):
            require(config, **{f"{part}activation_function": tuple(ACTIVATIONS)})
        known = _known(cls, config) | {"num_labels": len(label_names(config))}
        if backbone := config.get("backbone_config"):
            known["backbone"] = cls._backbone(backbone)
        settings = cls(**known)
        levels = settings.num_feature_levels
        require(config, num_feature_levels=levels)
        if not levels or not {0.5, 1.0, 2.0}.issuperset(settings.projector_scale_factors):
            scales = config["projector_scale_factors"]
            raise ValueError(f"projector_scale_factors must be some of 0.5, 1.0 and 2.0 in the config, got {scales}")
        return settings

    @staticmethod
    def _backbone(config: Mapping[str, Any]) -> vit.Layout:
        require(config, model_type="lw_detr_vit", num_channels=3, qkv_bias=True, dropout_prob=(0, 0.0))
        require(config, use_absolute_position_embeddings=True)
        windows, count = math.isqrt(config.get("num_windows", 16)), config.get("num_windows", 16)
        if windows**2 != count:
            raise ValueError(f"num_windows must be a square number in the config, got {count}")
        layout = dataclasses.replace(LW_DETR_VIT, **VIT_SIZES | _known(vit.Layout, config))
        return dataclasses.replace(
            layout,
            grid=config.get("pretrain_image_size", 224) // layout.patch_size,
            windows=windows,
            windowed=tuple(config.get("window_block_indices", ())),
            out_indices=_out_indices(config, layout.num_hidden_layers),
            layer_scale=config.get("cae_init_values", 0.1),
        )


@dataclasses.dataclass(frozen=True)
class RfDetrConfig(LwDetrConfig):
    """RF-DETR for detection, with one level. layer_norm_eps: of the projector."""

    backbone: vit.Layout = DINOV2
    layer_norm_eps: float = 1e-6

    @staticmethod
    def _backbone(config: Mapping[str, Any]) -> vit.Layout:
        require(config, model_type="rf_detr_dinov2", num_channels=3, qkv_bias=True, use_swiglu_ffn=False)
        require(config, apply_layernorm=True, reshape_hidden_states=True, use_mask_token=True, num_register_tokens=0)
        for part in ("hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate"):
            require(config, **{part: (0, 0.0)})
        layout = dataclasses.replace(DINOV2, **VIT_SIZES | _known(vit.Layout, config))
        indices = _out_indices(config, layout.num_hidden_layers)
        return dataclasses.replace(
            layout,
            grid=config.get("image_size", 224) // layout.patch_size,
            windows=config.get("num_windows", 4),
            windowed=tuple(index for index in range(layout.num_hidden_layers) if index not in indices),
            out_indices=indices,
            layer_scale=config.get("layerscale_value", 1.0),
        )


def label_names(config: Mapping[str, Any]) -> list[str]:
    """The names of the classes in a config.json, which has two unnamed ones if it says nothing else.

    Raises ValueError if `id2label` does not name the classes 0, 1, 2, ..., or `num_labels` or `label2id` contradicts.
    """
    count, named, numbers = (config.get(field) for field in ("num_labels", "id2label", "label2id"))
    if named is None:
        if count is not None and (type(count) is not int or count < 1):
            raise ValueError(f"num_labels must be a positive integer, got {count!r}")
        named = {str(index): f"LABEL_{index}" for index in range(count or 2)}
    by_number = {str(key): name for key, name in named.items()} if isinstance(named, Mapping) else {}
    names = [by_number.get(str(index)) for index in range(len(by_number))]
    if not names or len(names) < len(named) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"id2label must have a text for each of the keys '0', '1', '2' and so on, got {named!r}")
    if count not in (None, len(names)):
        raise ValueError(f"num_labels must be {len(names)}, as many as id2label has, got {count!r}")
    pairs = {(name, str(index)) for index, name in enumerate(names)}
    has_names = isinstance(numbers, Mapping) and numbers.keys() == set(names)
    if numbers is not None and not (has_names and pairs.issuperset((name, str(numbers[name])) for name in numbers)):
        raise ValueError(f"label2id must have the names and the numbers of id2label, got {numbers!r}")
    return names


def require(config: Mapping[str, Any], **supported: Any) -> None:
    """Raises if a setting that is present has another value than the supported one, or one of the supported tuple."""
    for name, values in supported.items():
        choices = values if isinstance(values, tuple) else (values,)
        if name in config and config[name] not in choices:
            raise ValueError(f"{name} must be {' or '.join(map(repr, choices))} in the config, got {config[name]!r}")


def _check(settings: "DeformableDetrConfig | RTDetrConfig", config: Mapping[str, Any], maps: int) -> None:
    """Raises if second names of settings have other values, or if there are more maps than are used."""
    require(config, hidden_size=settings.d_model, num_attention_heads=settings.encoder_attention_heads)
    levels = settings.num_feature_levels
    if levels < maps:
        raise ValueError(f"num_feature_levels must be at least {maps}, the number of the backbone's maps, got {levels}")


def _known(cls: type, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that `cls` has, whose values are not null, and that need no other function to be understood.

    Raises ValueError if one is not of the kind of its default.
    """
    known = {}
    for field in dataclasses.fields(cls):
        value, default = config.get(field.name), field.default
        if value is None or field.name in ("backbone", "out_indices"):
            continue
        value = tuple(value) if isinstance(value, list) else value
        kind = default[0] if isinstance(default, tuple) else default
        is_listed = isinstance(default, tuple) or field.name == "decoder_n_points"
        values = value if isinstance(value, tuple) and is_listed else (value,)
        has_form = isinstance(value, tuple) or not isinstance(default, tuple)
        if not (has_form and all(_is_like(one, kind) for one in values)):
            raise ValueError(f"{field.name} must be like {default!r} in the config, got {config[field.name]!r}")
        known[field.name] = value
    return known


def _is_like(value: Any, default: Any) -> bool:
    """Whether a value has the type of the default and, if that is a number of things, is not negative."""
    if isinstance(default, float):
        return type(value) in (int, float)
    return type(value) is type(default) and (type(value) is not int or value >= min(default, 0))
