"""The names of modules and parameters in Flax, and in PyTorch libraries."""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax

Path = tuple[str, ...]


class LibraryNames(NamedTuple):
    """The suffixes that a library adds to the name of a deformable convolution, and its name for a pooling branch."""

    conv: str
    conv_offset: str
    conv_mask: str | None = None  # the convolution that predicts masks, where it is one of its own
    offsets_and_masks: str | None = None  # the branch of a pooling layer that predicts both


STYLES = {
    "mmcv": LibraryNames("", ".conv_offset"),
    "detectron2": LibraryNames("", "_offset"),
    "dcnv2": LibraryNames("", ".conv_offset_mask", offsets_and_masks="offset_mask_fc"),
    "maskrcnn_benchmark": LibraryNames(".conv", ".offset"),
    "tvdcn": LibraryNames("", ".offset_generator", ".mask_generator"),
    "birefnet": LibraryNames(".regular_conv", ".offset_conv", ".modulator_conv"),
}
_PARAMETERS = {
    "kernel": "weight",
    "scale": "weight",
    "embedding": "weight",
    "mean": "running_mean",
    "var": "running_var",
}


def path_of(keys: Sequence[Any]) -> Path:
    """The names of the modules that lead to a parameter, and its own."""
    names = tuple(jax.tree_util.keystr((key,), simple=True) for key in keys)
    if isinstance(keys[-1], jax.tree_util.GetAttrKey) and names[-1] in ("value", "raw_value"):
        names = names[:-1]  # the attribute of the box around a parameter
    return names[1:] if names[0] in ("params", "batch_stats") else names


def parameters(name: str) -> list[str]:
    """Possible names of a parameter in PyTorch, most likely first."""
    return list(dict.fromkeys([_PARAMETERS.get(name, name), name]))


def modules(path: Path, prefix: str = "") -> list[str]:
    """Possible names of a Flax module in PyTorch, most likely first.

    >>> modules(("layer1_0", "conv1"), "backbone")
    ['backbone.layer1.0.conv1', 'backbone.layer1_0.conv1']
    >>> modules(("downsample", "layers_1"))
    ['downsample.1', 'downsample.layers.1', 'downsample.layers_1']
    """
    start = (prefix,) if prefix else ()
    return [".".join((*start, *itertools.chain(*names))) for names in itertools.product(*_choices(path))]


def _choices(path: Path) -> Iterable[list[Path]]:
    for name, following in itertools.zip_longest(path, path[1:], fillvalue=""):
        item = re.fullmatch(r"(.+)_(\d+)", name)
        choices: list[Path] = [(name,)]
        if item:
            choices.insert(0, (item[1], item[2]))
        if item and item[1] == "layers":  # a Sequential in Linen
            choices.insert(0, (item[2],))
        if name == "layers" and following.isdigit():  # a Sequential in NNX
            choices.insert(0, ())
        yield choices


def with_suffix(module: str, suffix: str) -> str:
    """The name of what a module contains; the name of the module may be empty."""
    return (module + suffix).removeprefix(".")


def joined(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name
