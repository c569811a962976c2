"""The names of parameters: from those in files and in the models of transformers to those of these models."""

import re
from collections.abc import Callable, Mapping

import numpy as np

HEADS = ("class_embed", "bbox_embed")
UNUSED = "model.denoising_class_embed."  # for a part of RT-DETR's training that these models do not have


KINDS = {"convolution": "conv", "normalization": "bn"}


def _stem(match: re.Match[str]) -> str:
    """A layer of a stem in transformers; only the stems of ResNet-vd have several, with numbers."""
    return f"backbone.{KINDS[match[2]]}{int(match[1] or 0) + 1}."


def _block(match: re.Match[str]) -> str:
    """A layer of a residual block in transformers."""
    return f"backbone.layer{int(match[1]) + 1}.{match[2]}.{KINDS[match[4]]}{int(match[3]) + 1}."


def _shortcut(match: re.Match[str]) -> str:
    return f"backbone.layer{int(match[1]) + 1}.{match[2]}.downsample.{list(KINDS).index(match[3])}."


# Applied one after another. A backbone of timm has the names of these models.
RENAMINGS: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"^model\.": "",
    # the layers of encoder and decoder, in files
    r"\.self_attn\.out_proj\.": ".self_attn.o_proj.",
    r"\.layers\.(\d+)\.(fc[12])\.": r".layers.\1.mlp.\2.",
    r"^encoder\.encoder\.": "encoder.aifi.",
    # parts that the models share, but that the original ones place differently
    r"^decoder\.((class|bbox)_embed|query_pos_head)\.": r"\1.",
    r"^(\w*input_proj\.\d+)\.0\.": r"\1.conv.",
    r"^(\w*input_proj\.\d+)\.1\.": r"\1.norm.",
    r"^enc_output\.0\.": "enc_output.",
    r"^enc_output\.1\.": "enc_output_norm.",
    # a backbone of transformers
    r"^backbone\.(conv_encoder\.)?model\.": "backbone.",
    r"^backbone\.embedder\.embedder\.(?:(\d)\.)?(convolution|normalization)\.": _stem,
    r"^backbone\.encoder\.stages\.(\d+)\.layers\.(\d+)\.layer\.(\d)\.(convolution|normalization)\.": _block,
    r"^backbone\.encoder\.stages\.(\d+)\.layers\.(\d+)\.shortcut\.(?:1\.)?(convolution|normalization)\.": _shortcut,
}


def renamed(name: str) -> str:
    """The name that a parameter has in these models.

    >>> renamed("model.backbone.model.encoder.stages.0.layers.0.layer.1.normalization.weight")
    'backbone.layer1.0.bn2.weight'
    >>> renamed("model.encoder.encoder.0.layers.0.fc1.bias")
    'encoder.aifi.0.layers.0.mlp.fc1.bias'
    """
    for pattern, replacement in RENAMINGS.items():
        name = re.sub(pattern, replacement, name)
    return name


def rename(state: Mapping[str, np.ndarray], heads: Mapping[str, int]) -> dict[str, np.ndarray]:
    """A state dict with the names of these models, without what they do not use.

    heads: how many of "class_embed" and "bbox_embed" the model has. A file may have several copies of a parameter, such
    as of a head that all layers share; they must be equal. If it has only the first head, the others are its copies.
    """
    source: dict[str, str] = {}
    for name in state:
        if name.startswith(UNUSED):
            continue
        new = renamed(name)
        for kind, count in heads.items():
            new = re.sub(rf"^{kind}\.\d+\.", f"{kind}.0.", new) if count == 1 else new
        known = source.setdefault(new, name)
        if not np.array_equal(state[known], state[name]):
            raise ValueError(f"{known!r} and {name!r} are one parameter of this model, but differ in the checkpoint")
    for kind, count in heads.items():
        present = [name for name in source if name.startswith(f"{kind}.")]
        if all(name.startswith(f"{kind}.0.") for name in present):
            for name in present:
                source |= {name.replace(".0.", f".{index}.", 1): source[name] for index in range(1, count)}
    return {new: state[name] for new, name in source.items()}
