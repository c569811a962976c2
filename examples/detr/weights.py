"""Models from checkpoints of transformers: a folder with config.json, and weights by name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from jax.typing import DTypeLike

from jax_dcn import interop

from . import names
from .config import DeformableDetrConfig, RTDetrConfig, labels, require
from .deformable_detr import DeformableDetr
from .rt_detr import RTDetr

MODELS = {
    "deformable_detr": (DeformableDetr, DeformableDetrConfig),
    "rt_detr": (RTDetr, RTDetrConfig),
    "rt_detr_v2": (RTDetr, RTDetrConfig),
}
FILES = ("model.safetensors", "pytorch_model.bin")
INIT_SIZE = 640  # sides of the images for which parameters are made: large enough for the usual number of proposals


class Checkpoint(NamedTuple):
    """A model, its variables and the names of its classes; its kind, and its preprocessor_config.json if it has one."""

    model: nn.Module
    variables: dict[str, Any]
    labels: list[str]
    model_type: str
    processor: dict[str, Any]


def load(folder: str | Path) -> Checkpoint:
    """Reads a folder that `save_pretrained` has written, or a snapshot from the hub."""
    folder = Path(folder)
    config = _json(folder / "config.json")
    weights = next((folder / name for name in FILES if (folder / name).exists()), None)
    if weights is None:
        raise FileNotFoundError(f"{folder} must have {' or '.join(FILES)}")
    model = make_model(config)
    processor = folder / "preprocessor_config.json"
    return Checkpoint(
        model,
        fill(model, interop.load(weights)),
        labels(config),
        config["model_type"],
        _json(processor) if processor.exists() else {},
    )


def make_model(config: Mapping[str, Any]) -> nn.Module:
    """The model of a config.json."""
    require(config, model_type=tuple(MODELS))
    model, settings = MODELS[config["model_type"]]
    return model(settings.from_json(config))


def fill(model: nn.Module, state: Mapping[str, np.ndarray], dtype: DTypeLike = "float32") -> dict[str, Any]:
    """The variables of a model, from a state dict with the names in files or in models of transformers."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, INIT_SIZE, INIT_SIZE, 3), dtype))
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), shapes)
    heads = {kind: sum(name.startswith(f"{kind}_") for name in shapes["params"]) for kind in names.HEADS}
    return interop.from_torch(names.rename(state, heads), shapes)


def _json(path):
    if not path.exists():
        raise FileNotFoundError(f"{path.parent} must have {path.name}, as a checkpoint of transformers has")
    return json.loads(path.read_text())
