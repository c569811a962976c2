"""Models from checkpoints of mmdet: the arrays of a file say which model it is."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.resnet.model import STAGES
from jax_dcn import interop

from .config import Config
from .detector import RCNN

INIT_SIZE = 64
CLASSES, NECK = "roi_head.bbox_head.fc_cls.weight", "neck.fpn_convs.0.conv.weight"


def load(path: str | Path, weights_only: bool = True) -> tuple[RCNN, dict[str, Any]]:
    """The model and the variables of a checkpoint file, as `interop.load` reads it."""
    state = interop.load(path, weights_only=weights_only)
    model = RCNN(config_of(state))
    return model, fill(model, state)


def config_of(state: Mapping[str, np.ndarray]) -> Config:
    """The settings that the names and the shapes of a checkpoint of mmdet imply."""
    blocks = tuple(
        len({name.split(".")[2] for name in state if name.startswith(f"backbone.layer{stage}.")})
        for stage in (1, 2, 3, 4)
    )
    depths = {stages: depth for depth, stages in STAGES.items()}
    if blocks not in depths:
        raise ValueError(f"the checkpoint must have a ResNet-50, -101 or -152 as backbone, got {blocks} blocks")
    missing = [name for name in (CLASSES, NECK) if name not in state]
    if missing:
        raise ValueError(f"the checkpoint must be of mmdet's Faster R-CNN or Mask R-CNN, but it lacks {missing[0]!r}")
    offsets = [f"backbone.layer{stage}.0.conv2.conv_offset.weight" for stage in (1, 2, 3, 4)]
    deformable = [name for name in offsets if name in state]
    modulated, offset_groups = _offsets(*state[deformable[0]].shape[:2]) if deformable else (True, 1)
    return Config(
        classes=state[CLASSES].shape[0] - 1,
        masks="roi_head.mask_head.conv_logits.weight" in state,
        depth=depths[blocks],
        stage_with_dcn=tuple(name in state for name in offsets),
        modulated=modulated,
        offset_groups=offset_groups,
        channels=state[NECK].shape[0],
        hidden=state[CLASSES].shape[1],
    )


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


def adapt(model: RCNN, variables: dict[str, Any], classes: int, key: jax.Array) -> tuple[RCNN, dict[str, Any]]:
    """A model with another number of classes. Its last layers have new weights; all others keep theirs."""
    if classes == model.config.classes:
        return model, variables
    adapted = RCNN(replace(model.config, classes=classes))
    old, structure = jax.tree.flatten(variables)
    new = [leaf.shape != kept.shape for leaf, kept in zip(jax.tree.leaves(shapes(adapted)), old, strict=True)]

    @jax.jit
    def last_layers(key):
        leaves = jax.tree.leaves(initialise(adapted, key))
        return [leaf for leaf, is_new in zip(leaves, new, strict=True) if is_new]

    fresh = iter(last_layers(key))
    return adapted, structure.unflatten(next(fresh) if is_new else leaf for leaf, is_new in zip(old, new, strict=True))
