"""The config of a checkpoint of mmdet: each of its settings that changes what a model finds is used or refused.

A checkpoint has its config as the text of Python assignments, which is parsed, and not run.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from examples.library.files import shortened

from .roi_heads import BOX_BINS, MASK_BINS, POOLED_LEVELS
from .rpn import STRIDES


class Only(tuple):
    """The values that are implemented; those that mmdet's classes have by default are among them."""

    def __new__(cls, *values: Any) -> "Only":
        return super().__new__(cls, values)


@dataclass(frozen=True)
class Use:
    """The value is that of a setting of `examples.rcnn.Config`, or `not` that, if `is_negated`.

    default: what mmdet takes if there is no value; None leaves the setting as it is.
    """

    setting: str
    default: Any = None
    is_negated: bool = False


ANY = object()
# Settings for training only, or that the arrays of the checkpoint say too. A rule for one of them comes first.
IGNORED = {
    *("backend_args", "base_channels", "batch_augments", "boxtype2tensor", "clip_object_border", "conv_out_channels"),
    *("ctr_clamp", "deform_groups", "deformable_groups", "depth", "extra_convs_on_inputs", "fc_out_channels"),
    *("feat_channels", "file_client_args", "flip_direction", "frozen_stages", "ignore_empty", "in_channels"),
    *("init_cfg", "loss_bbox", "loss_mask", "loss_weight", "mask_pad_value", "modulated", "momentum", "nms_post"),
    *("no_norm_on_lateral", "non_blocking", "norm_eval", "num_classes", "num_convs", "out_channels", "pad_mask"),
    *("pad_seg", "pretrained", "reg_decoded_bbox", "relu_before_extra_convs", "requires_grad", "roi_feat_size"),
    *("seg_pad_value", "stage_with_dcn", "stem_channels", "test_cfg", "to_float32", "train_cfg", "transforms"),
    *("use_box_type", "use_torchvision", "with_cp", "zero_init_residual"),
}
NORM = {"type": Only("BN", "SyncBN"), "eps": Only(1e-5)}
LINEAR = {"type": Only("Linear")}
ZERO = Only(0, [0] * 3, {"img": 0}, {"img": [0] * 3}, {"img": 0, "masks": 0, "seg": 255})  # the last is mmdet's default


def _coder(stds):
    return {
        "type": Only("DeltaXYWHBBoxCoder"),
        "target_means": Only([0.0] * 4),
        "target_stds": Use(stds, [1.0] * 4),
        "clip_border": Only(True),
        "add_ctr_clamp": Only(False),
    }


def _extractor(bins):
    return {
        "type": Only("SingleRoIExtractor"),
        "roi_layer": {
            "type": Only("RoIAlign"),
            "output_size": Only(bins),
            "sampling_ratio": Use("sampling_ratio", 0),
            "aligned": Only(True),
            "pool_mode": Only("avg"),
        },
        "featmap_strides": Only(list(STRIDES[:POOLED_LEVELS])),
        "finest_scale": Only(56),
    }


def _suppression(settings):
    threshold = Use(f"{settings}.iou_threshold")
    return {"type": Only("nms"), "iou_threshold": threshold, "iou_thr": threshold}  # mmdet 3, mmdet 2


def _proposals(settings):
    return {
        "nms_pre": Use(f"{settings}.per_level"),
        "max_per_img": Use(f"{settings}.count"),
        "max_num": Use(f"{settings}.count"),  # of mmdet 2, as the next one
        "nms_thr": Use(f"{settings}.iou_threshold"),
        "nms": _suppression(settings),
        "min_bbox_size": Only(0),
        "nms_across_levels": Only(False),
    }


MODEL = {
    "type": Only("FasterRCNN", "MaskRCNN"),
    "data_preprocessor": {
        "type": Only("DetDataPreprocessor"),
        "mean": Use("mean", [0.0] * 3),
        "std": Use("deviation", [1.0] * 3),
        "bgr_to_rgb": Use("bgr", False, is_negated=True),
        "rgb_to_bgr": Only(False),
        "pad_size_divisor": Use("divisor", 1),
        "pad_value": Only(0),
    },
    "backbone": {
        "type": Only("ResNet"),
        "num_stages": Only(4),
        "strides": Only([1, 2, 2, 2]),
        "dilations": Only([1, 1, 1, 1]),
        "out_indices": Only([0, 1, 2, 3]),
        "style": Use("style", "pytorch"),
        "deep_stem": Only(False),
        "avg_down": Only(False),
        "conv_cfg": Only({"type": "Conv2d"}),
        "norm_cfg": NORM,
        "dcn": {"type": Only("DCN", "DCNv2"), "fallback_on_stride": Only(False)},
        "plugins": Only([]),
    },
    "neck": {
        "type": Only("FPN"),
        "num_outs": Only(len(STRIDES)),
        "start_level": Only(0),
        "end_level": Only(-1, 3),
        "add_extra_convs": Only(False),
        "act_cfg": Only(),
        "upsample_cfg": {"mode": Only("nearest")},
        **dict.fromkeys(("conv_cfg", "norm_cfg"), Only()),
    },
    "rpn_head": {
        "type": Only("RPNHead"),
        "num_convs": Only(1),
        "anchor_generator": {
            "type": Only("AnchorGenerator"),
            "scales": Use("anchor_scales"),
            "ratios": Use("anchor_ratios"),
            "strides": Only(list(STRIDES)),
            "base_sizes": Only(list(STRIDES)),
            "scale_major": Only(True),
            "center_offset": Only(0.0),
        },
        "bbox_coder": _coder("anchor_stds"),
        "loss_cls": {"type": Only("CrossEntropyLoss"), "use_sigmoid": Only(True)},
    },
    "roi_head": {
        "type": Only("StandardRoIHead"),
        "bbox_roi_extractor": _extractor(BOX_BINS),
        "bbox_head": {
            "type": Only("Shared2FCBBoxHead"),
            "bbox_coder": _coder("box_stds"),
            "reg_class_agnostic": Only(False),
            "with_avg_pool": Only(False),
            "roi_feat_size": Only(BOX_BINS),
            "reg_predictor_cfg": LINEAR,
            "cls_predictor_cfg": LINEAR,
            "predict_box_type": Only("hbox"),
            "loss_cls": {"type": Only("CrossEntropyLoss"), "use_sigmoid": Only(False)},
            **dict.fromkeys(("conv_cfg", "norm_cfg"), Only()),
        },
        "mask_roi_extractor": _extractor(MASK_BINS),
        "mask_head": {
            "type": Only("FCNMaskHead"),
            "conv_kernel_size": Only(3),
            "class_agnostic": Only(False),
            "upsample_cfg": {"type": Only("deconv"), "scale_factor": Only(2)},
            "predictor_cfg": {"type": Only("Conv")},
            **dict.fromkeys(("conv_cfg", "norm_cfg"), Only()),
        },
        "shared_head": Only(),
    },
}
TESTING = {
    "rpn": _proposals("proposals"),
    "rcnn": {
        "score_thr": Use("objects.score_threshold"),
        "nms": _suppression("objects"),
        "max_per_img": Use("objects.count"),
        "mask_thr_binary": Use("mask_threshold", 0.5),
    },
}
# The steps of mmdet's pipeline for a test image, by their types.
STEPS: dict[str, Any] = {
    "Resize": {
        "scale": Use("scale"),
        "keep_ratio": Only(True),
        "backend": Only("cv2"),
        "interpolation": Only("bilinear"),
    },
    "MultiScaleFlipAug": {"img_scale": Use("scale"), "flip": Only(False)},
    "Normalize": {"mean": Use("mean"), "std": Use("deviation"), "to_rgb": Use("bgr", True, is_negated=True)},
    "Pad": {"size_divisor": Use("divisor"), "pad_val": ZERO},
    "LoadImageFromFile": {"color_type": Only("color"), "imdecode_backend": Only("cv2")},
    **dict.fromkeys(("LoadAnnotations", "PackDetInputs"), ANY),
    **dict.fromkeys(("RandomFlip", "ImageToTensor", "DefaultFormatBundle", "Collect"), ANY),
}


def settings_of(text: str) -> dict[str, Any]:
    """The settings of `examples.rcnn.Config` in the text of a config of mmdet 2 or 3, which has no `_base_`.

    Raises ValueError that names what the text has and `examples.rcnn` does not implement.
    """
    config = parsed(text)
    if "_base_" in config:
        raise ValueError(
            "the config must be whole, as mmdet writes it to its work_dir and into checkpoints, but refers to a _base_"
        )
    model = config.get("model")
    if not isinstance(model, Mapping) or "roi_head" not in model:
        raise ValueError("the config must have a model with a roi_head, as in mmdet 2 and 3")
    steps = list(_steps(config))
    if "data_preprocessor" not in model and not any(step.get("type") == "Normalize" for step in steps):
        raise ValueError("the config must have a data_preprocessor, or a step Normalize for test images")
    found: dict[str, Any] = {}
    _read(model, MODEL, "model", found)
    _read(model.get("test_cfg") or config.get("test_cfg"), TESTING, "test_cfg", found)
    training = model.get("train_cfg") or config.get("train_cfg") or {}
    _read(training.get("rpn_proposal"), _proposals("training_proposals"), "train_cfg.rpn_proposal", found)
    for step in steps:
        kind = step.get("type")
        if kind not in STEPS:
            raise ValueError(f"the config has a step {kind!r} for test images, which is not implemented")
        # With a size, mmdet 3 does not keep the ratio by default; mmdet 2 has no size here, and does.
        if kind == "Resize" and "scale" in step and "keep_ratio" not in step:
            raise ValueError("the step Resize must have keep_ratio=True, because nothing else is implemented")
        arguments = {name: value for name, value in step.items() if name != "type"}
        _read(arguments, STEPS[kind], f"the step {kind}", found)
    return found


def names_of(text: str) -> Any:
    """The names of the classes of the training data in the text of a config; None if it does not give them."""
    names = _in_dataset(parsed(text), "train", _names)
    return names if isinstance(names, list) else None  # mmdet also takes a file of names


def _names(dataset):
    meta = dataset.get("metainfo")
    return dataset.get("classes", meta.get("classes", meta.get("CLASSES")) if isinstance(meta, Mapping) else None)


def parsed(text: str) -> dict[str, Any]:
    """The variables of a config, of `dict(...)`, lists, constants and earlier variables; tuples become lists.

    Raises ValueError for any other statement than `name = value`, because it may change a variable.

    >>> parsed("scales = (8, -1.5); model = dict(type='RPN', scales=scales)")["model"]
    {'type': 'RPN', 'scales': [8, -1.5]}
    """
    try:
        statements = ast.parse(text).body
    except SyntaxError as error:
        raise ValueError(f"the config must be assignments of Python: {error}") from error
    variables: dict[str, Any] = {}
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]):
                variables[name] = _value(statement.value, variables)
            case ast.Expr(value=ast.Constant()):  # a docstring
                pass
            case _:
                raise ValueError(
                    f"line {statement.lineno} of the config must be NAME = VALUE, as in the whole config that mmdet "
                    f"writes to its work_dir, got {shortened(ast.unparse(statement).splitlines()[0])}"
                )
    return variables


def _value(node, variables):
    """A value of constants; for any other expression its text, which equals no value that is implemented."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        return {keyword.arg: _value(keyword.value, variables) for keyword in node.keywords}
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {key.value: _value(value, variables) for key, value in zip(node.keys, node.values, strict=True)}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item, variables) for item in node.elts]
    if isinstance(node, ast.Name) and node.id in variables:
        return variables[node.id]
    try:
        return ast.literal_eval(node)
    except ValueError:
        return f"the expression {ast.unparse(node)}"


def _steps(config) -> Iterator[dict[str, Any]]:
    """The steps of the pipeline of test images, and those inside of MultiScaleFlipAug."""
    found = _in_dataset(config, "test", lambda dataset: dataset.get("pipeline"))
    for step in _dicts(found or config.get("test_pipeline")):
        yield step
        yield from _dicts(step.get("transforms"))


def _in_dataset(config, split, find):
    """What `find` finds in the data set of a split, as by `_first`, where mmdet 3 or mmdet 2 has it."""
    data = config.get("data")
    used = config.get(f"{split}_dataloader"), data.get(split) if isinstance(data, Mapping) else None
    return next(filter(None, (_first(dataset, find) for dataset in used)), None)


def _first(dataset, find):
    """What `find` finds in a data set, or in the first one inside it, as in mmdet; None if there is nothing."""
    if isinstance(dataset, list):
        dataset = next(iter(dataset), None)
    if not isinstance(dataset, Mapping):
        return None
    found = find(dataset)
    return _first(dataset.get("dataset", dataset.get("datasets")), find) if found is None else found


def _dicts(steps) -> list[dict[str, Any]]:
    steps = steps or []
    if not isinstance(steps, list) or not all(isinstance(step, Mapping) for step in steps):
        raise ValueError(f"the steps for test images must be a list of dicts, got {shortened(steps)}")
    return steps


def _read(value, rule, name, found):
    """Adds the settings in a part of the config to those that were found; None is a part that is not there."""
    if isinstance(rule, Use):
        value = rule.default if value is None else value
        if value is not None:
            value = not value if rule.is_negated else value
            if found.setdefault(rule.setting, value) != value:
                raise ValueError(f"{name} must agree with the rest of the config, {found[rule.setting]}, got {value}")
    elif value is None or rule is ANY:
        pass
    elif isinstance(rule, Only):
        if value not in rule:
            wanted = f"must be {' or '.join(map(repr, rule))}" if rule else "must not be given"
            raise ValueError(
                f"{name} of the config {wanted}, because nothing else is implemented, got {shortened(value)}"
            )
    elif not isinstance(value, Mapping):
        raise ValueError(f"{name} of the config must be a dict, got {shortened(value)}")
    else:
        for key, inner in rule.items():  # the type is first
            _read(value.get(key), inner, f"{name}.{key}", found)
        for key in value.keys() - rule.keys() - IGNORED:
            if value[key] is not None:
                raise ValueError(f"the config has {name}.{key} = {shortened(value[key])}, which is not implemented")
