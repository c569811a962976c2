"""The options that both commands share."""

import argparse
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from .images import SIZE
from .model import STRIDE, Aliked
from .weights import MODELS, load, published


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the model and its images."""
    add = parser.add_argument
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--model", choices=MODELS, default="aliked-n16", help="the published weights (%(default)s)")
    weights.add_argument("--weights", type=Path, help="a file of weights, in place of the published ones")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="in which layers compute (%(default)s)")
    size_help = f"of the images into which photographs are fitted, multiples of {STRIDE} (%(default)s)"
    add("--size", type=side, nargs=2, metavar=("HEIGHT", "WIDTH"), default=SIZE, help=size_help)


def side(text: str) -> int:
    """A height or a width that the model takes."""
    if not text.isdecimal() or int(text) < STRIDE or int(text) % STRIDE:
        raise argparse.ArgumentTypeError(f"must be a multiple of {STRIDE}, got {text}")
    return int(text)


def weights_of(options: argparse.Namespace) -> Path:
    """The file of the weights."""
    return options.weights or published(options.model)


def model_of(options: argparse.Namespace) -> tuple[Aliked, dict[str, Any]]:
    """The model and its variables."""
    return load(weights_of(options), jnp.dtype(options.dtype))
