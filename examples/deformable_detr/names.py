"""The names of parameters: from those in files and in the models of transformers to those of these models."""

import re
from collections.abc import Callable, Mapping

import numpy as np

UNUSED = "model.denoising_class_embed."  # for a part of RT-DETR's training that these models do not have


def _previous(template: str) -> Callable[[re.Match[str]], str]:
    """A replacement that inserts the number in the last group of a match, less one."""
    return lambda match: match.expand(template).format(int(match[match.lastindex]) - 1)


HEADS = ("class_embed", "bbox_embed")

# One rule after another.
RENAMINGS = {
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
    r"^backbone\.embedder\.embedder\.(?=[cn])": "backbone.embedder.0.",
    r"^backbone\.embedder\.embedder\.": "backbone.embedder.",
    r"^backbone\.encoder\.stages\.(\d+)\.layers\.": r"backbone.stage\1.",
    r"\.shortcut\.1\.": ".shortcut.",
    # a backbone of timm
    r"^backbone\.conv1\.": "backbone.embedder.0.convolution.",
    r"^backbone\.bn1\.": "backbone.embedder.0.normalization.",
    r"^backbone\.layer(\d)\.": _previous("backbone.stage{}."),
    r"^(backbone\.stage\d\.\d+)\.conv(\d)\.": _previous(r"\1.layer.{}.convolution."),
    r"^(backbone\.stage\d\.\d+)\.bn(\d)\.": _previous(r"\1.layer.{}.normalization."),
    r"\.downsample\.0\.": ".shortcut.convolution.",
    r"\.downsample\.1\.": ".shortcut.normalization.",
}


def renamed(name: str) -> str:
    """The name that a parameter has in these models.

    >>> renamed("model.backbone.conv_encoder.model.layer1.0.bn2.weight")
    'backbone.stage0.0.layer.1.normalization.weight'
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
