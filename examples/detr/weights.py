"""Checkpoints of transformers: a folder with config.json, and weights by name; read, written, and with new classes."""

import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from examples.library import classes, files
from jax_dcn import interop

from . import names
from .config import (
    DeformableDetrConfig,
    DeimConfig,
    DFineConfig,
    LwDetrConfig,
    RfDetrConfig,
    RTDetrConfig,
    label_names,
    require,
)
from .criterion import Criterion, DeformableDetrLosses, DeimLosses, DFineLosses, LwDetrLosses, RTDetrLosses
from .d_fine import DFine
from .deformable_detr import DeformableDetr
from .deim import Deim
from .images import Preprocessor
from .lw_detr import LwDetr
from .rt_detr import COARSEST_STRIDE, RTDetr

MODELS = {
    "deformable_detr": (DeformableDetr, DeformableDetrConfig),
    "rt_detr": (RTDetr, RTDetrConfig),
    "rt_detr_v2": (RTDetr, RTDetrConfig),
    "d_fine": (DFine, DFineConfig),
    "deimv2": (Deim, DeimConfig),
    "lw_detr": (LwDetr, LwDetrConfig),
    "rf_detr": (LwDetr, RfDetrConfig),
}
ADAPTER = "adapter_config.json"  # of peft
UNTRUSTED = "load it in Python and write its arrays with `save_pretrained` of transformers"
# The first one that is in a folder is read, as by transformers.
FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
INIT_SIZE = 64  # least sides of the images for which parameters are made
# Parameters that depend on the classes.
OF_CLASSES = ("class_embed", "enc_score_head", "denoising_class_embed", "enc_out_class_embed")


class Checkpoint(NamedTuple):
    """A model and its variables; its config.json, and how its images are made."""

    model: nn.Module
    variables: dict[str, Any]
    config: dict[str, Any]
    processor: Preprocessor

    @property
    def labels(self) -> list[str]:
        """The names of the classes."""
        return label_names(self.config)

    @property
    def model_type(self) -> str:
        """The kind of the model, such as "rt_detr_v2"."""
        return self.config["model_type"]


def load(folder: str | Path, dtype: DTypeLike | None = None) -> Checkpoint:
    """Reads a folder that `save_pretrained` has written, or a snapshot from the hub.

    dtype: of the model's products and convolutions, by default that of the parameters, float32.
    """
    folder = Path(folder)
    path = folder / "config.json"
    if (folder / ADAPTER).exists():
        raise ValueError(f"{folder} must have no {ADAPTER}: `merge_and_unload` of peft merges adapters into a model")
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} must be a folder with {path.name}, as a checkpoint of transformers is; `hf download NAME "
            "--local-dir FOLDER` makes it from a name on the hub"
        )
    config = files.read_object(path)
    with files.naming(path):
        make_model(config)  # raises if the config is not supported, before the weights are read
    architectures, usual = config.get("architectures"), f"{config['model_type'].replace('_', '')}ForObjectDetection"
    if architectures and usual.lower() not in str(architectures).lower():
        logging.getLogger(__name__).warning("%s has architectures %s; its model_type is used", path, architectures)
    processor_path, settings = processor_settings(folder)
    if not settings:
        logging.getLogger(__name__).warning("%s has no settings. Assumed are those of the authors.", processor_path)
    with files.naming(processor_path):
        processor = Preprocessor.from_json(config["model_type"], settings)
    factor, mean, _ = processor.normalisation
    files.check_unit(processor_path, "image_mean", mean, 255 * factor)
    state = files.without_wrappers(_weights(folder))
    files.check_finite(state, folder)
    config = names.with_constants(config, state)
    with files.naming(path):
        model = make_model(config, dtype)
    with files.naming(folder):
        return Checkpoint(model, fill(model, state, config), config, processor)


def save(folder: str | Path, checkpoint: Checkpoint) -> None:
    """Writes a folder that `from_pretrained` of transformers and `load` read."""
    from safetensors.numpy import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    dtypes = {key: "float32" for key in ("dtype", "torch_dtype") if key in checkpoint.config}
    (folder / "config.json").write_text(json.dumps(checkpoint.config | dtypes, indent=2))
    if checkpoint.processor.settings:
        (folder / "preprocessor_config.json").write_text(json.dumps(checkpoint.processor.settings, indent=2))
    with files.replaced(folder / "model.safetensors") as file:
        save_file(to_file(checkpoint), file, {"format": "pt"})


def to_file(checkpoint: Checkpoint, dtype: DTypeLike = "float32") -> dict[str, np.ndarray]:
    """The arrays of a checkpoint by the names that transformers gives them."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(checkpoint.variables)[0]:
        array = np.asarray(leaf, dtype)
        if path[-1].key == "kernel":
            array = array.transpose(-1, -2, *range(array.ndim - 2))
        found[names.in_file(names.of_path(path), checkpoint.config)] = np.ascontiguousarray(array)
    return names.packed(found, checkpoint.config) | names.derived(found, checkpoint.config)


def make_model(config: Mapping[str, Any], dtype: DTypeLike | None = None) -> nn.Module:
    """The model of a config.json."""
    if "model_type" not in config:
        raise ValueError(f"the config must have model_type, one of {', '.join(MODELS)}")
    require(config, model_type=tuple(MODELS))
    model, settings = MODELS[config["model_type"]]
    return model(settings.from_json(config), dtype)


def shapes(model: nn.Module, dtype: DTypeLike = "float32") -> dict[str, Any]:
    """The shapes of the variables of a model."""
    found = jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct(_init_shape(model), dtype))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), found)


def fill(
    model: nn.Module, state: Mapping[str, np.ndarray], config: Mapping[str, Any], dtype: DTypeLike = "float32"
) -> dict[str, Any]:
    """The variables of the model of a config.json, from a state dict with the names in files or in models of
    transformers, all of which must be used, or follow from the config."""
    like, state = shapes(model, dtype), names.unpacked(state)
    heads = {kind: sum(name.startswith(f"{kind}_") for name in like["params"]) for kind in names.HEADS}
    constants = names.constants(config)
    for name, array in state.items():
        for end, constant in constants.items():
            if name.endswith(end) and not np.array_equal(array, constant.astype(array.dtype)):
                raise ValueError(f"{name!r} has other values in the checkpoint than follow from its config")
    # `_kp_active_mask` is an array without values in files of RF-DETR's authors.
    ignored = ("num_batches_tracked", "_kp_active_mask", *constants)
    parameters = {name: array for name, array in state.items() if not name.endswith(ignored)}
    source = names.rename(parameters, heads, config["model_type"])
    expected = {names.of_path(path) for path, _ in jax.tree_util.tree_flatten_with_path(like)[0]}
    missing = sorted(names.in_file(name, config) for name in expected - source.keys())
    unexpected = sorted(source[name] for name in source.keys() - expected)
    if missing or unexpected:
        differ = f"missing {files.listed(missing)}; unexpected {files.listed(unexpected)}"
        raise ValueError(f"its weights are not those of its config: {differ}")
    return interop.from_torch({name: state[known] for name, known in source.items()}, like)


def initialise(config: Mapping[str, Any], key: jax.Array, dtype: DTypeLike | None = None) -> Checkpoint:
    """A model of a config.json with random weights, as for training from nothing."""
    model = make_model(config, dtype)
    variables = jax.jit(_init, static_argnums=0)(model, key)
    return Checkpoint(model, variables, dict(config), Preprocessor.from_json(config["model_type"], {}))


def _init(model, key):
    return model.init(key, jnp.zeros(_init_shape(model)))


def _init_shape(model):
    stride = stride_of(model)
    return (1, *[-(-INIT_SIZE // stride) * stride] * 2, 3)


def stride_of(model: nn.Module) -> int:
    """By which the sides of the images of a model must be divisible, if it takes no mask."""
    return getattr(model.config, "stride", COARSEST_STRIDE)


def adapt(checkpoint: Checkpoint, labels: Sequence[str], key: jax.Array) -> Checkpoint:
    """A model for other classes. Those that the checkpoint does not have by name have new weights in classifiers and
    embeddings; all else keeps its weights."""
    if list(labels) == checkpoint.labels:
        return checkpoint
    places = classes.places(labels, checkpoint.labels)
    config = with_labels(checkpoint.config, labels)
    model = make_model(config, checkpoint.model.dtype)

    def per_class(path):
        depends = any(entry.key.startswith(OF_CLASSES) for entry in path)
        return (1, 0 if path[-1].key == "embedding" else -1) if depends else None

    variables = classes.adapted(checkpoint.variables, partial(_init, model), per_class, places, key)
    return checkpoint._replace(model=model, variables=variables, config=config)


def with_labels(config: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """A config.json with other classes."""
    named = {str(index): label for index, label in enumerate(labels)}
    kept = {key: value for key, value in config.items() if key != "num_labels"}
    return kept | {"id2label": named, "label2id": {label: int(index) for index, label in named.items()}}


def criterion(checkpoint: Checkpoint) -> Criterion:
    """The losses that a model is trained with."""
    if checkpoint.model_type == "deformable_detr":
        return DeformableDetrLosses()
    if isinstance(checkpoint.model.config, LwDetrConfig):
        return LwDetrLosses(groups=checkpoint.model.config.group_detr)
    config = checkpoint.model.config
    if isinstance(config, DeimConfig):
        return DeimLosses(unites=config.encoder_type != "lite", distribution=config.distribution)
    if isinstance(config, DFineConfig):
        return DFineLosses(distribution=config.distribution)
    return RTDetrLosses()


def processor_settings(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The file with the settings of an image processor, for which transformers 5 has two names, and the settings."""
    nested, path = folder / "processor_config.json", folder / "preprocessor_config.json"
    found = files.read_object(nested).get("image_processor") if nested.exists() else None
    if found is None:
        return path, files.read_object(path) if path.exists() else {}
    if not isinstance(found, dict):
        raise ValueError(f"image_processor in {nested} must be an object of JSON, got {found!r}")
    return nested, found


def _weights(folder):
    path = next((folder / name for name in FILES if (folder / name).exists()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} must have {' or '.join(FILES)}")
    if path.suffix != ".json":
        return _arrays(path)
    places = files.read_object(path).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise ValueError(f"{path} must have a weight_map, which names the file of each array")
    parts = {file: _arrays(folder / file) for file in sorted(set(places.values()))}
    missing = [name for name, file in places.items() if name not in parts[file]]
    unexpected = sorted({name for part in parts.values() for name in part} - places.keys())
    if missing or unexpected:
        raise ValueError(
            f"the files in the weight_map of {path} do not fit: missing {files.listed(missing)}; "
            f"unexpected {files.listed(unexpected)}"
        )
    return {name: parts[file][name] for name, file in places.items()}


def _arrays(path):
    with files.rewording({"pass weights_only=False": UNTRUSTED}):
        return interop.load(path)
