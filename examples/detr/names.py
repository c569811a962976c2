"""The names of parameters: in files of transformers, and in these models as `interop.to_torch` writes them."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from examples.resnet.model import Layout

from .config import backbone_layout

HEADS = ("class_embed", "bbox_embed")
KINDS = {"convolution": "conv", "normalization": "bn"}
OF_BINS = {"up": 0.5, "reg_scale": 4.0}  # settings of D-FINE and DEIMv2, and their defaults
LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "mean": "running_mean", "var": "running_var"}
Rules = dict[str, str | Callable[[re.Match[str]], str]]


def _stem(match: re.Match[str]) -> str:
    """A layer of a stem in transformers; only the stems of ResNet-vd have several, with numbers."""
    return f"backbone.{KINDS[match[2]]}{int(match[1] or 0) + 1}."


def _block(match: re.Match[str]) -> str:
    """A layer of a residual block in transformers."""
    return f"backbone.layer{int(match[1]) + 1}.{match[2]}.{KINDS[match[4]]}{int(match[3]) + 1}."


def _shortcut(match: re.Match[str]) -> str:
    return f"backbone.layer{int(match[1]) + 1}.{match[2]}.downsample.{list(KINDS).index(match[3])}."


# From all names that files and models of transformers 4 and 5 have, one rule after another. A backbone of timm has the
# names of these models.
FROM_FILES: Rules = {
    r"^model\.": "",
    # the layers of encoder and decoder, in files
    r"\.self_attn\.out_proj\.": ".self_attn.o_proj.",
    r"\.layers\.(\d+)\.(fc[12])\.": r".layers.\1.mlp.\2.",
    r"\.mlp\.layers\.0\.": ".mlp.fc1.",
    r"\.mlp\.layers\.1\.": ".mlp.fc2.",
    r"^encoder\.encoder\.": "encoder.aifi.",
    r"^conv_encoder\.encoder_": "encoder_",
    # parts that the models share, but that the original ones place differently
    r"^decoder\.((class|bbox)_embed|query_pos_head|pre_bbox_head)\.": r"\1.",
    r"^(\w*input_proj\.\d+)\.0\.": r"\1.conv.",
    r"^(\w*input_proj\.\d+)\.1\.": r"\1.norm.",
    r"^enc_output\.0\.": "enc_output.",
    r"^enc_output\.1\.": "enc_output_norm.",
    # backbones of transformers
    r"\.lab\.scale$": ".lab.factor",
    r"^(backbone|conv_encoder|backbone\.conv_encoder)\.model\.": "backbone.",
    r"^backbone\.embedder\.embedder\.(?:(\d)\.)?(convolution|normalization)\.": _stem,
    r"^backbone\.encoder\.stages\.(\d+)\.layers\.(\d+)\.layer\.(\d)\.(convolution|normalization)\.": _block,
    r"^backbone\.encoder\.stages\.(\d+)\.layers\.(\d+)\.shortcut\.(?:1\.)?(convolution|normalization)\.": _shortcut,
}

# To the names that transformers 5 writes, one rule after another.
TO_FILES: Rules = {
    r"\.self_attn\.o_proj\.": ".self_attn.out_proj.",
    r"\.layers\.(\d+)\.mlp\.": r".layers.\1.",
    r"^encoder\.aifi\.": "encoder.encoder.",
    r"^(\w*input_proj\.\d+)\.conv\.": r"\1.0.",
    r"^(\w*input_proj\.\d+)\.norm\.": r"\1.1.",
}
TO_FILES_OF_RT_DETR: Rules = {
    r"^enc_output\.": "enc_output.0.",
    r"^enc_output_norm\.": "enc_output.1.",
    r"\.lab\.factor$": ".lab.scale",
    r"^(query_pos_head|pre_bbox_head)\.": r"decoder.\1.",
}

TO_FILES_OF_DEIM: Rules = TO_FILES_OF_RT_DETR | {
    r"\.mlp\.fc1\.": ".mlp.layers.0.",
    r"\.mlp\.fc2\.": ".mlp.layers.1.",
    r"^backbone\.": "conv_encoder.model.",
    r"^(encoder_input_proj\.)": r"conv_encoder.\1",
    r"^((class|bbox)_embed\.)": r"decoder.\1",
    r"^": "model.",
}

# The same for LW-DETR and RF-DETR, also of the files of RF-DETR's authors.
FROM_FILES_OF_LW_DETR: Rules = {
    r"^(model|transformer)\.": "",
    r"^backbone\.(0\.encoder\.encoder|backbone)\.": "backbone.",
    r"^backbone\.encoder\.layer\.": "backbone.layer.",
    r"^backbone\.embeddings\.patch_embeddings\.": "backbone.embeddings.",
    r"\.attention\.attention\.([qkv])\w+\.": r".attention.\1_proj.",
    r"\.attention\.output\.(dense\.)?": ".attention.o_proj.",
    r"\.intermediate\.": ".mlp.",
    r"\.layernorm_before\.": ".norm1.",
    r"\.layernorm_after\.": ".norm2.",
    r"\.layer_scale(\d)\.lambda1$": r".gamma_\1",
    r"^backbone\.(0\.)?projector\.": "projector.",
    r"^projector\.(projector_layer|layer_norm)\.": r"projector.scale_layers.0.\1.",
    r"^projector\.stages\.(\d)\.0\.": r"projector.scale_layers.\1.projector_layer.",
    r"^projector\.stages\.(\d)\.1\.": r"projector.scale_layers.\1.layer_norm.",
    r"\.m\.(\d+)\.": r".bottlenecks.\1.",
    r"\.cv(\d)\.": r".conv\1.",
    r"\.bn\.": ".norm.",
    r"^refpoint_embed\.": "reference_point_embed.",
    r"^decoder\.ref_point_head\.": "ref_point_head.",
    r"^decoder\.norm\.": "decoder.layernorm.",
    r"^(decoder\.layers\.\d+)\.norm1\.": r"\1.self_attn_layer_norm.",
    r"^(decoder\.layers\.\d+)\.(norm2|cross_attn_layer_norm)\.": r"\1.encoder_attn_layer_norm.",
    r"^(decoder\.layers\.\d+)\.(norm3|layer_norm)\.": r"\1.final_layer_norm.",
    r"^(decoder\.layers\.\d+)\.linear(\d)\.": r"\1.mlp.fc\2.",
    r"\.cross_attn\.": ".encoder_attn.",
    r"\.self_attn\.out_proj\.": ".self_attn.o_proj.",
}
_OF_VIT: Rules = {
    r"^backbone\.layer\.": "backbone.encoder.layer.",
    r"\.attention\.q_proj\.": ".attention.attention.query.",
    r"\.attention\.k_proj\.": ".attention.attention.key.",
    r"\.attention\.v_proj\.": ".attention.attention.value.",
}
TO_FILES_OF_LW_DETR: Rules = _OF_VIT | {
    r"\.attention\.o_proj\.": ".attention.output.",
    r"^(backbone\..*)\.mlp\.": r"\1.intermediate.",
    r"^(backbone\..*)\.norm1\.": r"\1.layernorm_before.",
    r"^(backbone\..*)\.norm2\.": r"\1.layernorm_after.",
    r"\.final_layer_norm\.": ".layer_norm.",
    r"\.encoder_attn": ".cross_attn",
    r"^ref_point_head\.": "decoder.ref_point_head.",
    r"^(backbone|projector)\.": r"backbone.\1.",
    r"^(?!class_embed|bbox_embed)": "model.",
}
TO_FILES_OF_RF_DETR: Rules = _OF_VIT | {
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    r"^backbone\.embeddings\.projection\.": "backbone.embeddings.patch_embeddings.projection.",
    r"\.gamma_(\d)$": r".layer_scale\1.lambda1",
    r"^backbone\.": "backbone.0.encoder.encoder.",
    r"^(projector\..*)\.norm\.": r"\1.bn.",
    r"^projector\.scale_layers\.0\.projector_layer\.": "backbone.0.projector.stages.0.0.",
    r"^projector\.scale_layers\.0\.layer_norm\.": "backbone.0.projector.stages.0.1.",
    r"\.bottlenecks\.": ".m.",
    r"\.conv(\d)\.": r".cv\1.",
    r"^reference_point_embed\.": "refpoint_embed.",
    r"^ref_point_head\.": "decoder.ref_point_head.",
    r"^decoder\.layernorm\.": "decoder.norm.",
    r"\.self_attn_layer_norm\.": ".norm1.",
    r"\.encoder_attn_layer_norm\.": ".norm2.",
    r"\.final_layer_norm\.": ".norm3.",
    r"^(decoder\..*)\.mlp\.fc(\d)\.": r"\1.linear\2.",
    r"\.encoder_attn\.": ".cross_attn.",
    r"\.self_attn\.o_proj\.": ".self_attn.out_proj.",
    r"^(decoder|enc_out)": r"transformer.\1",
}
# By the type of a model, where they are not those of transformers' other models.
READING = dict.fromkeys(("lw_detr", "rf_detr"), FROM_FILES_OF_LW_DETR)
WRITING = {"deimv2": TO_FILES_OF_DEIM, "lw_detr": TO_FILES_OF_LW_DETR, "rf_detr": TO_FILES_OF_RF_DETR}
OF_BACKBONES = r"\.(backbone|conv_encoder\.model)\."
PROJECTIONS = ("q_proj", "k_proj", "v_proj")  # which files of RF-DETR have as one array
PACKED = r"\.self_attn\.in_proj_(weight|bias)$"


def _resnet_to_files(layout: Layout) -> Rules:
    """Of a ResNet; in those that take means, these come before the convolution of a strided shortcut."""
    kinds = {short: long for long, short in KINDS.items()}

    def stem(match):
        number = f"{int(match[2]) - 1}." if layout.deep else ""
        return f"backbone.embedder.embedder.{number}{kinds[match[1]]}."

    def block(match):
        layer = f"layer.{int(match[4]) - 1}.{kinds[match[3]]}"
        return f"backbone.encoder.stages.{int(match[1]) - 1}.layers.{match[2]}.{layer}."

    def shortcut(match):
        stage = int(match[1]) - 1
        takes_means = stage > 0 and layout.takes_means(*layout.hidden_sizes[stage - 1 : stage + 1])
        place = "shortcut.1" if takes_means else "shortcut"
        return f"backbone.encoder.stages.{stage}.layers.{match[2]}.{place}.{list(KINDS)[int(match[3])]}."

    return {
        r"^backbone\.(conv|bn)(\d)\.": stem,
        r"^backbone\.layer(\d)\.(\d+)\.(conv|bn)(\d)\.": block,
        r"^backbone\.layer(\d)\.(\d+)\.downsample\.(\d)\.": shortcut,
    }


def of_path(path: Sequence[Any]) -> str:
    """The name in these models of the variable at a path of jax.tree_util.

    >>> import jax
    >>> tree = {"params": {"encoder": {"layers_0": {"fc1": {"kernel": 0}}}}}
    >>> of_path(jax.tree_util.tree_flatten_with_path(tree)[0][0][0])
    'encoder.layers.0.fc1.weight'
    """
    *modules, kind = [entry.key for entry in path[1:]]
    return ".".join([*(re.sub(r"_(\d+)$", r".\1", module) for module in modules), LEAVES.get(kind, kind)])


def renamed(name: str, model_type: str = "") -> str:
    """The name in these models of a parameter in a file.

    model_type: that of a config.json, which need only be given if it is in `READING`.

    >>> renamed("model.backbone.model.encoder.stages.0.layers.0.layer.1.normalization.weight")
    'backbone.layer1.0.bn2.weight'
    >>> renamed("model.encoder.encoder.0.layers.0.fc1.bias")
    'encoder.aifi.0.layers.0.mlp.fc1.bias'
    """
    return _apply(READING.get(model_type, FROM_FILES), name)


def in_file(name: str, config: Mapping[str, Any]) -> str:
    """The name in a file of a parameter of the model of a config.json.

    >>> config = {"model_type": "rt_detr", "backbone_config": {"model_type": "rt_detr_resnet"}}
    >>> in_file("backbone.layer1.0.bn2.weight", config)
    'model.backbone.model.encoder.stages.0.layers.0.layer.1.normalization.weight'
    """
    if config["model_type"] in WRITING:
        return _apply(WRITING[config["model_type"]], name)
    is_deformable_detr = config["model_type"] == "deformable_detr"
    rules = TO_FILES if is_deformable_detr else TO_FILES | TO_FILES_OF_RT_DETR
    # D-FINE's backbone and those of timm have the names of these models.
    default = {"model_type": "rt_detr_resnet" if config["model_type"].startswith("rt_detr") else None}
    backbone = config.get("backbone_config") or default
    if backbone["model_type"] in ("resnet", "rt_detr_resnet"):
        rules = _resnet_to_files(backbone_layout(backbone)) | rules
    name = _apply(rules, name)
    name = re.sub(r"^backbone\.", "backbone.conv_encoder.model." if is_deformable_detr else "backbone.model.", name)
    if name.startswith(HEADS):
        option = {"class_embed": "two_stage", "bbox_embed": "with_box_refine"}[name.partition(".")[0]]
        return name if is_deformable_detr and not config.get(option) else f"model.decoder.{name}"
    return f"model.{name}"


def unpacked(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A state dict with an array for each of the projections of self attention that it has as one array."""
    found = {}
    for name, array in state.items():
        if match := re.search(PACKED, name):
            start, parts = f"{name[: match.start()]}.self_attn", np.split(array, len(PROJECTIONS))
            found |= {f"{start}.{kind}.{match[1]}": part for kind, part in zip(PROJECTIONS, parts, strict=True)}
        else:
            found[name] = array
    return found


def packed(state: dict[str, np.ndarray], config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The inverse of `unpacked`, for models whose files have such arrays."""
    if config["model_type"] != "rf_detr":
        return state
    found = dict(state)
    for name in state:
        if ".self_attn.q_proj." in name:
            parts = [found.pop(name.replace("q_proj", kind)) for kind in PROJECTIONS]
            found[name.replace("q_proj.", "in_proj_")] = np.concatenate(parts)
    return found


def rename(state: Mapping[str, np.ndarray], heads: Mapping[str, int], model_type: str = "") -> dict[str, str]:
    """The names in a file, by the names in these models.

    model_type: as of `renamed`. heads: how many of "class_embed" and "bbox_embed" the model has. A file may have
    several copies of a parameter, such as of a head that all layers share; they must be equal. If it has only the first
    head, the others are its copies.
    """
    source: dict[str, str] = {}
    for name in state:
        new = renamed(name, model_type)
        for kind, count in heads.items():
            new = re.sub(rf"^{kind}\.\d+\.", f"{kind}.0.", new) if count == 1 else new
        known = source.setdefault(new, name)
        if known != name and not np.array_equal(state[known], state[name], equal_nan=True):
            raise ValueError(f"{known!r} and {name!r} are one parameter of this model, but differ in the checkpoint")
    for kind, count in heads.items():
        present = [name for name in source if name.startswith(f"{kind}.")]
        if all(name.startswith(f"{kind}.0.") for name in present):
            for name in present:
                source |= {name.replace(".0.", f".{index}.", 1): source[name] for index in range(1, count)}
    return source


def constants(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays that a file has for settings, by the ends of their names: quotients of points, and bins."""
    kind, arrays = config["model_type"], {}
    quotients = {"rt_detr_v2": "n_points_scale", "d_fine": "num_points_scale", "deimv2": "num_points_scale"}
    if quotient := quotients.get(kind):
        points = config.get("decoder_n_points", 4)
        counts = points if isinstance(points, (list, tuple)) else [points] * config.get("num_feature_levels", 3)
        arrays[f"encoder_attn.{quotient}"] = np.concatenate([np.full(count, 1 / count, np.float32) for count in counts])
    if kind in ("d_fine", "deimv2"):
        for key, value in OF_BINS.items():
            arrays[f"decoder.{key}"] = np.full(1, config.get(key, value), np.float32)
    return arrays


def with_constants(config: dict[str, Any], state: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The config with the settings of the bins in a file, which transformers prefers to those of the config."""
    read = {end: (state[f"model.{end}"], array) for end, array in constants(config).items() if f"model.{end}" in state}
    changed = {end: float(found[0]) for end, (found, known) in read.items() if found[0] != known[0]}
    return config | {end.removeprefix("decoder."): value for end, value in changed.items()}


def derived(names: Iterable[str], config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays that a file has beside parameters: `constants`, and counters of batch normalisations."""
    known = constants(config)
    arrays = {f"model.{end}": array for end, array in known.items() if end.startswith("decoder.")}
    frozen = config["model_type"] == "deformable_detr" or config.get("freeze_backbone_batch_norms", True)
    frozen = frozen and config["model_type"] not in READING  # whose backbones have none
    for name in names:
        module = name.rpartition(".")[0]
        if name.endswith(".running_var") and not (frozen and re.search(OF_BACKBONES, name)):
            arrays[f"{module}.num_batches_tracked"] = np.zeros((), np.int64)
        if name.endswith("encoder_attn.sampling_offsets.bias"):
            layer = module.removesuffix("encoder_attn.sampling_offsets")
            arrays |= {layer + end: array for end, array in known.items() if end.startswith("encoder_attn.")}
    return arrays


def _apply(rules, name):
    for pattern, replacement in rules.items():
        name = re.sub(pattern, replacement, name)
    return name
