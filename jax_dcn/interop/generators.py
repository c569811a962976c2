"""Converts two convolutions, one that predicts offsets and one for masks: `DeformConv` has one for both.

Those of tvdcn divide their input channels into as many groups as there are offset groups, and may lack a bias.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jax_dcn.interop import names
from jax_dcn.interop.regions import Found

_OFFSETS = [style.conv_offset for style in names.STYLES.values() if style.conv_mask]
_MASKS = [style.conv_mask for style in names.STYLES.values() if style.conv_mask]


def read(
    find: Callable[[Sequence[str]], Found | None], modules: Sequence[str], kernel_shape: Sequence[int]
) -> dict[str, Found]:
    """The kernel and the bias of `conv_offset`, whose kernel has this shape, in the layout of PyTorch.

    Empty if the state dict has no such convolutions.
    """

    def parameters(name: str) -> list[Found]:
        keys = (
            [f"{names.with_suffix(module, suffix)}.{name}" for suffix in suffixes for module in modules]
            for suffixes in (_OFFSETS, _MASKS)
        )
        return [found for of_one in keys if (found := find(of_one))]

    weights, biases = parameters("weight"), parameters("bias")
    keys = tuple(key for found in (*weights, *biases) for key in found[0])
    if not weights:
        return {}
    channels, outputs = kernel_shape[-2:]
    kernel = np.concatenate([_ungrouped(found[0][0], found[1], channels) for found in weights])
    bias = np.concatenate([found[1] for found in biases]) if biases else np.zeros(outputs, kernel.dtype)
    return {"kernel": (keys, kernel), "bias": (keys, bias)}


def write(parameters: Mapping[str, np.ndarray], owner: str, style: names.LibraryNames) -> dict[str, np.ndarray]:
    """The inverse of `read`, from parameters of a layer in the layout of PyTorch, for one offset group."""
    kernel = parameters["kernel"]
    taps, axes = math.prod(kernel.shape[2:]), kernel.ndim - 2
    if axes == 1 and len(kernel) == 2 * taps:
        raise ValueError(
            f"{owner or 'the layer'} of one axis must not have two outputs for each tap, which may be offsets and "
            "masks, or offsets of two groups"
        )
    if len(kernel) not in (axes * taps, (axes + 1) * taps):
        raise ValueError(
            f"{owner or 'the layer'} must have one offset group to be written as a convolution for offsets and one for "
            f"masks, got {len(kernel)} outputs for a kernel of {taps} taps"
        )
    arrays = {"weight": kernel, "bias": parameters["bias"]}
    offsets, masks = (names.with_suffix(owner, suffix or "") for suffix in (style.conv_offset, style.conv_mask))
    state = {f"{offsets}.{name}": array[: axes * taps] for name, array in arrays.items()}
    if len(kernel) > axes * taps:
        state |= {f"{masks}.{name}": array[axes * taps :] for name, array in arrays.items()}
    return state


def _ungrouped(key: str, weight: np.ndarray, channels: int) -> np.ndarray:
    """The weight [out, in, …] of a convolution without groups that computes the same as one with groups."""
    outputs, group_channels = weight.shape[:2]
    groups = channels // max(group_channels, 1)
    if groups * group_channels != channels or outputs % max(groups, 1):
        raise ValueError(f"{key!r} must have a number of input channels that divides {channels}, got {weight.shape}")
    full = np.zeros((groups, outputs // groups, groups, *weight.shape[1:]), weight.dtype)
    for group, weights in enumerate(weight.reshape(groups, outputs // groups, *weight.shape[1:])):
        full[group, :, group] = weights
    return full.reshape(outputs, channels, *weight.shape[2:])
