"""The options of commands that read a checkpoint of mmdet."""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
from flax.typing import Dtype

from examples.library.files import rewording

from .detector import RCNN
from .weights import load, with_backbone

CHECKPOINT_HELP = "a .pth, .safetensors or .npz file"


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say what the arrays of a checkpoint do not."""
    add = parser.add_argument
    add("--config", type=Path, help="a whole config of mmdet, for a checkpoint without one")
    set_help = "settings that differ from those in the file, such as style=caffe mean=[103.53,116.28,123.675]"
    add("--set", nargs="+", action="extend", metavar="NAME=VALUE", default=[], help=set_help)
    add("--trust", action="store_true", help="read a checkpoint that ends in .pkl, and run code in it")


def read_checkpoint(options: argparse.Namespace, dtype: Dtype | None = None) -> tuple[RCNN, dict[str, Any]]:
    """The model and the variables of the checkpoint in options, as by `load`."""
    return _read(options, load, options.checkpoint, config=options.config, dtype=dtype)


def read_backbone(options: argparse.Namespace, model: RCNN, key: jax.Array) -> tuple[RCNN, dict[str, Any]]:
    """A model with the backbone in options, as by `with_backbone`."""
    return _read(options, with_backbone, options.backbone, model=model, key=key)


def _read(options, read, path, **others):
    settings = dict(map(_setting, options.set))
    if len(settings) < len(options.set):
        raise ValueError(f"--set must name each setting once, got {' '.join(options.set)}")
    with rewording({"weights_only=False": "--trust", " (strict=False leaves them out)": ""}):
        return read(path, not options.trust, settings=settings, **others)


def _setting(text):
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set must be NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
