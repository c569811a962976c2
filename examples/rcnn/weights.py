"""Models from checkpoints of mmdet: the arrays and the config in a file say which model it is."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Dtype

from examples.library import classes
from examples.library.files import check_finite, check_unit, listed, naming, read_text, replaced, without_wrappers
from examples.resnet.model import STAGES
from jax_dcn import interop
from jax_dcn.interop import checkpoint

from .config import Config, with_settings
from .detector import RCNN
from .mmdet_config import names_of, settings_of

INIT_SIZE = 64
CLASSES, NECK = "roi_head.bbox_head.fc_cls.weight", "neck.fpn_convs.0.conv.weight"
ANCHORS = "rpn_head.rpn_cls.weight"
OF_BACKBONE = ("style", "mean", "deviation", "bgr")  # settings
PER_CLASS = {"fc_cls": 1, "fc_reg": 4, "conv_logits": 1}  # outputs of the layers that depend on the classes
# How names of other libraries begin.
OTHERS = {
    "Detectron2": ("proposal_generator.", "backbone.bottom_up."),
    "torchvision": ("roi_heads.", "rpn.head.", "backbone.body."),
    "mmdet 1, or a detector of one stage": ("bbox_head.", "mask_head."),
}


def load(
    path: str | Path,
    weights_only: bool = True,
    *,
    config: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    dtype: Dtype | None = None,
) -> tuple[RCNN, dict[str, Any]]:
    """The model and the variables of a checkpoint file, read as by `interop.load`.

    The arrays do not say all that the model needs: see `Config.settings`. These are read from the config of mmdet in
    the file, or else assumed, and then logged as a warning.

    config: a file with a whole config of mmdet, in place of that in the checkpoint. settings: replace those that are
    read or assumed. dtype: as of `RCNN`.

    Raises ValueError if a checkpoint is of another model, or its config has what is not implemented.
    """
    path = Path(path)
    text = read_text(config) if config else None
    content, state = _read(path, weights_only)
    if config:
        content = {**content, "settings": None, "meta": {**_mapping(content, "meta"), "cfg": text}}
    with naming(path):
        check_names(state)
        made = config_of(state)
    with naming(config or path):
        found = settings_in(content) or {}
        made = with_settings(replace(made, names=names_in(content, made.classes)), found)
    model = RCNN(_completed(made, found, settings or {}, made.settings, config or path), dtype)
    with naming(path):
        return model, fill(model, state)


def _read(path, weights_only):
    """What a file contains, and its arrays with the newest names of mmdet."""
    content = checkpoint.read(path, weights_only)
    state = checkpoint.arrays_of(content, path)
    check_finite(state, path)
    with naming(path):
        return content, renamed(state)


def _completed(config, found, given, needed, path):
    """A config with the settings that are given. Logs those of `needed` that are neither given nor found in a file."""
    config = with_settings(config, given)
    check_unit(path, "mean", config.mean, 255)
    assumed = [f"{name}={json.dumps(config.settings[name])}" for name in needed if name not in {*found, *given}]
    if assumed:
        lacking = "lacks settings in its" if found else "has no"
        logging.getLogger(__name__).warning("%s %s config of mmdet. Assumed: %s", path, lacking, ", ".join(assumed))
    return config


def save(path: Path, model: RCNN, variables: dict[str, Any]) -> None:
    """Writes a `.npz` file of arrays with mmdet's names, and two texts: "settings" of the model, and names of
    "classes"."""
    texts = {"settings": model.config.settings, "classes": model.config.names}
    texts = {name: np.array(json.dumps(value)) for name, value in texts.items()}
    with replaced(path) as file:
        np.savez(file, **texts, **interop.to_torch(variables))


def settings_in(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings in what a file contains: those that `save` writes, or those of mmdet's config; None without any."""
    settings = _saved(content, "settings")
    if not isinstance(settings, dict | None):
        raise ValueError(f"its settings must be an object of JSON, got {settings!r}")
    if settings is None and (text := _config_in(content)) is not None:
        return settings_of(text)
    return settings


def _config_in(content):
    meta = _mapping(content, "meta")
    text = meta.get("cfg", meta.get("config"))  # mmdet 3, mmdet 2
    return text if isinstance(text, str) else None


def names_in(content: Mapping[str, Any], classes: int) -> tuple[str, ...]:
    """The names of classes in what a file contains: those that `save` or mmdet writes, also in its config; () if there
    are none.

    Raises ValueError if they are not as many texts as there are classes, or differ.
    """
    meta, text = _mapping(content, "meta"), _config_in(content)
    found = [of.get(key) for of in (meta, _mapping(meta, "dataset_meta")) for key in ("classes", "CLASSES")]
    found += [_saved(content, "classes"), names_of(text) if text else None]
    listed = {_checked_names(names, classes) for names in found if names is not None} - {()}
    if len(listed) > 1:
        raise ValueError(f"it must name its classes once, got {' and '.join(map(repr, sorted(listed)))}")
    return listed.pop() if listed else ()


def _checked_names(names, classes):
    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, list | tuple) or not all(isinstance(name, str) for name in listed):
        raise ValueError(f"its names of classes must be a list of texts, got {names!r}")
    if listed and len(listed) != classes:
        raise ValueError(f"it must name its {classes} classes, got {len(listed)} names")
    return tuple(listed)


def _saved(content, name):
    """The value of a text that `save` has written, or None. Other tools may store something else under this name."""
    text = content.get(name)
    if not isinstance(text, np.ndarray) or text.dtype.kind != "U":
        return None
    try:
        return json.loads(str(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its {name} must be JSON: {error}") from error


def _mapping(content, name):
    value = content.get(name)
    return value if isinstance(value, Mapping) else {}


def renamed(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A state dict with the newest names of mmdet, without `conv2_offset`, and without wrappers.

    Raises ValueError if two names become the same.
    """
    state = without_wrappers(state)
    newest = {name: name.replace(".conv2_offset.", ".conv2.conv_offset.") for name in state}
    twice = [name for name, new in newest.items() if name != new and new in state]
    if twice:
        raise ValueError(f"the checkpoint must have each parameter once, but has {listed(twice)} by its new name, too")
    return {newest[name]: array for name, array in state.items()}


def check_names(state: Mapping[str, np.ndarray]) -> None:
    """Raises ValueError if the names in a checkpoint are those of another library, or of another model."""
    for library, start in OTHERS.items():
        if any(name.startswith(start) for name in state):
            raise ValueError(f"the checkpoint must be of mmdet's Faster R-CNN or Mask R-CNN, but is of {library}")
    missing = [name for name in (CLASSES, NECK, ANCHORS) if name not in state]
    if missing:
        raise ValueError(f"the checkpoint must be of mmdet's Faster R-CNN or Mask R-CNN, but it lacks {missing[0]!r}")


def config_of(state: Mapping[str, np.ndarray]) -> Config:
    """What the names and the shapes of a checkpoint of mmdet imply; the rest has default values."""
    backbone = {name.removeprefix("backbone.") for name in state if name.startswith("backbone.")}
    offsets = [f"backbone.layer{stage}.0.conv2.conv_offset.weight" for stage in (1, 2, 3, 4)]
    deformable = [name for name in offsets if name in state]
    modulated, offset_groups = _offsets(*state[deformable[0]].shape[:2]) if deformable else (True, 1)
    return Config(
        classes=state[CLASSES].shape[0] - 1,
        masks="roi_head.mask_head.conv_logits.weight" in state,
        depth=depth_of(backbone),
        stage_with_dcn=tuple(name in state for name in offsets),
        modulated=modulated,
        offset_groups=offset_groups,
        channels=state[NECK].shape[0],
        hidden=state[CLASSES].shape[1],
    )


def depth_of(names: Iterable[str]) -> int:
    """The depth of the ResNet whose parameters have these names."""
    names = list(names)
    blocks = tuple(
        len({name.split(".")[1] for name in names if name.startswith(f"layer{stage}.")}) for stage in (1, 2, 3, 4)
    )
    depths = {stages: depth for depth, stages in STAGES.items()}
    if blocks not in depths:
        raise ValueError(f"the checkpoint must have a ResNet-50, -101 or -152 as backbone, got {blocks} blocks")
    return depths[blocks]


def _offsets(outputs: int, channels: int) -> tuple[bool, int]:
    """Whether a layer of 3x3 is modulated, and its offset groups, from the shape of its offset convolution.

    18 · 3 g channels could be 27 · 2 g, but only one of them can be: groups divide the layer's channels, a power of 2.
    """
    for modulated, per_group in ((True, 27), (False, 18)):
        groups, rest = divmod(outputs, per_group)
        if rest == 0 and groups and channels % groups == 0:
            return modulated, groups
    raise ValueError(f"an offset convolution must have 18 or 27 channels per group, got {outputs}")


def fill(model: RCNN, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The variables of a model, from a state dict with mmdet's names, all of which must be used."""
    found, wanted = len(state[ANCHORS]), model.config.anchors_per_cell
    if found != wanted:
        raise ValueError(
            f"anchor_scales and anchor_ratios must make {found} anchors per cell, as {ANCHORS}, got {wanted}"
        )
    return interop.from_torch(state, shapes(model))


def shapes(model: RCNN) -> dict[str, Any]:
    """The shapes of the variables of a model."""
    return jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, INIT_SIZE, INIT_SIZE, 3), "float32"))


@partial(jax.jit, static_argnums=0)
def initialise(model: RCNN, key: jax.Array) -> dict[str, Any]:
    """Random variables for training from nothing: at first, each residual block returns its shortcut.

    The batch norms stay what they are, so that nothing else keeps the scale of the features.
    """
    variables = model.init(key, jnp.zeros((1, INIT_SIZE, INIT_SIZE, 3)))

    def start(path, leaf):
        return jnp.zeros_like(leaf) if [entry.key for entry in path[-2:]] == ["bn3", "scale"] else leaf

    return jax.tree_util.tree_map_with_path(start, variables)


def with_backbone(
    path: Path, weights_only: bool = True, *, model: RCNN, key: jax.Array, settings: Mapping[str, Any] | None = None
) -> tuple[RCNN, dict[str, Any]]:
    """A model with new weights, but for its backbone, which is that in a file: torchvision's, or one of a detector.

    Convolutions that become deformable have zero offsets. The file decides the depth and, if it has a config of mmdet,
    what the backbone needs of it, unless the settings have all of that.
    """
    content, state = _read(path, weights_only)
    given, found = settings or {}, {}
    if not {*OF_BACKBONE} <= {*given}:
        with naming(path, f"; the settings {', '.join(OF_BACKBONE)} (--set) can take the place of its config"):
            found = settings_in(content) or {}
    with naming(path):
        start = "backbone." if any(name.startswith("backbone.") for name in state) else ""
        arrays = {name: array for name, array in state.items() if name.startswith(start) and not name.startswith("fc.")}
        arrays = {name.removeprefix(start): array for name, array in arrays.items()}
        config = replace(model.config, depth=depth_of(arrays))
        config = with_settings(config, {name: found[name] for name in OF_BACKBONE if name in found})
    model = model.clone(config=_completed(config, found, given, OF_BACKBONE, path))
    variables = initialise(model, key)
    new = {kind: tree["backbone"] for kind, tree in variables.items() if "backbone" in tree}
    offsets = {name: array for name, array in interop.to_torch(new).items() if ".conv_offset." in name}
    with naming(path):
        filled = interop.from_torch(offsets | arrays, new)
    return model, {kind: tree | {"backbone": filled[kind]} for kind, tree in variables.items()}


def adapt(model: RCNN, variables: dict[str, Any], names: Sequence[str], key: jax.Array) -> tuple[RCNN, dict[str, Any]]:
    """A model for other classes. Its last layers have new weights for classes that the model does not have by name."""
    if tuple(names) == model.config.names:
        return model, variables
    made = model.clone(config=replace(model.config, names=tuple(names), classes=len(names)))
    places = classes.places(names, model.config.names)

    def per_class(path):
        count = PER_CLASS.get(path[-2].key)
        return count and (count, -1)

    return made, classes.adapted(variables, partial(initialise, made), per_class, places, key)
