"""Converts the two convolutions with which tvdcn predicts offsets and masks: `DeformConv` has one for both.

Theirs divide their input channels into as many groups as there are offset groups, and may lack a bias.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jax_dcn.interop import names
from jax_dcn.interop.regions import Found

_OFFSETS, _MASKS = "offset_generator", "mask_generator"


def read(
    find: Callable[[Sequence[str]], Found | None], modules: Sequence[str], kernel_shape: Sequence[int]
) -> dict[str, Found]:
    """The kernel and the bias of `conv_offset`, whose kernel has this shape, in the layout of PyTorch.

    Empty if the state dict has no such convolutions.
    """

    def parameter(generator: str, name: str) -> Found | None:
        return find([names.joined(module, f"{generator}.{name}") for module in modules])

    weights = [found for one in (_OFFSETS, _MASKS) if (found := parameter(one, "weight"))]
    biases = [found for one in (_OFFSETS, _MASKS) if (found := parameter(one, "bias"))]
    keys = tuple(key for found in (*weights, *biases) for key in found[0])
    if not weights:
        return {}
    channels, outputs = kernel_shape[-2:]
    kernel = np.concatenate([_ungrouped(found[0][0], found[1], channels) for found in weights])
    bias = np.concatenate([found[1] for found in biases]) if biases else np.zeros(outputs, kernel.dtype)
    return {"kernel": (keys, kernel), "bias": (keys, bias)}


def write(parameters: Mapping[str, np.ndarray], owner: str) -> dict[str, np.ndarray]:
    """The inverse of `read`, from parameters in the layout of PyTorch, for one offset group."""
    kernel = parameters["kernel"]
    taps, axes = math.prod(kernel.shape[2:]), kernel.ndim - 2
    if axes == 1 and len(kernel) == 2 * taps:
        raise ValueError(
            f"{owner or 'the layer'} of one axis must not have two outputs for each tap, which may be offsets and "
            "masks, or offsets of two groups"
        )
    if len(kernel) not in (axes * taps, (axes + 1) * taps):
        raise ValueError(
            f"{owner or 'the layer'} must have one offset group: a convolution of tvdcn that predicts the offsets of a "
            f"group reads only the channels of this group, got {len(kernel)} outputs for a kernel of {taps} taps"
        )
    parts = {"weight": kernel, "bias": parameters["bias"]}
    state = {f"{_OFFSETS}.{name}": array[: axes * taps] for name, array in parts.items()}
    if len(kernel) > axes * taps:
        state |= {f"{_MASKS}.{name}": array[axes * taps :] for name, array in parts.items()}
    return state


def _ungrouped(key: str, weight: np.ndarray, channels: int) -> np.ndarray:
    """The weight [out, in, …] of a convolution without groups that computes the same as one with groups."""
    outputs, group_channels = weight.shape[:2]
    groups = channels // max(group_channels, 1)
    if groups * group_channels != channels or outputs % max(groups, 1):
        raise ValueError(f"{key!r} must have a number of input channels that divides {channels}, got {weight.shape}")
    full = np.zeros((groups, outputs // groups, groups, *weight.shape[1:]), weight.dtype)
    for group, part in enumerate(weight.reshape(groups, outputs // groups, *weight.shape[1:])):
        full[group, :, group] = part
    return full.reshape(outputs, channels, *weight.shape[2:])
