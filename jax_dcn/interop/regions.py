"""Converts the branch of a deformable RoI pooling layer, which PyTorch libraries name, flatten and split differently.

Their branch reads pooled regions flattened as (channel, row, column) and outputs (value, row, column). The branch of
this package reads (row, column, channel) and outputs (row, column, value). The values are dx, dy and, if modulated, a
mask logit.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from jax_dcn.interop import names

Linear = tuple[np.ndarray, np.ndarray]  # weight [out, in] and bias [out]
Layers = Sequence[Linear]
OutputSize = tuple[int, int] | None  # rows and columns of bins; None means that both are equal
Found = tuple[tuple[str, ...], np.ndarray]  # the names of the arrays that it was made from, and an array

LAYERS = (0, 2, 4)  # the indices of the linear layers of a branch
_MASK_LAYERS = (0, 2)


def read(
    find: Callable[[Sequence[str]], Found | None], modules: Sequence[str], output_size: OutputSize
) -> dict[tuple[int, str], Found]:
    """The parameters of a branch by layer and name; empty if the state dict has no branch."""
    keys: list[str] = []

    def layers_of(branch: str, indices: Sequence[int]) -> Layers:
        suffixes = [f"{branch}.{i}.{name}" for i in indices for name in ("weight", "bias")]
        found = [find([names.joined(module, suffix) for module in modules]) for suffix in suffixes]
        if not any(found):
            return []
        for suffix, one in zip(suffixes, found, strict=True):
            if one is None:
                raise ValueError(f"state_dict lacks {names.joined(modules[0], suffix)!r}, but has others of {branch}")
            keys.extend(one[0])
        arrays = [one[1] for one in found if one is not None]
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    theirs = layers_of("offset_mask_fc", LAYERS) or layers_of("offset_fc", LAYERS)
    masks = layers_of("mask_fc", _MASK_LAYERS)
    if not theirs:
        return {}
    layers = _to_flax(_side_by_side(theirs, masks) if masks else theirs, output_size)
    return {
        (i, name): ((keys[i + k], *keys), layer[k])  # its own name first, for error messages
        for i, layer in zip(LAYERS, layers, strict=True)
        for k, name in enumerate(("kernel", "bias"))
    }


def write(
    parameters: Mapping[tuple[int, str], np.ndarray], style: names.LibraryNames, output_size: OutputSize
) -> dict[str, np.ndarray]:
    """The inverse of `read`: the state dict of a branch, from its parameters by layer and name."""
    layers = _from_flax([(parameters[i, "kernel"], parameters[i, "bias"]) for i in LAYERS], output_size)
    branches = {"offset_fc": layers}
    if _bins(layers[-1], output_size)[0] == 3:
        branches = {style.offsets_and_masks: layers} if style.offsets_and_masks else _apart(layers)
    return {
        f"{branch}.{2 * i}.{name}": array
        for branch, layers in branches.items()
        for i, layer in enumerate(layers)
        for name, array in zip(("weight", "bias"), layer, strict=True)
    }


def _to_flax(layers: Layers, output_size: OutputSize) -> Layers:
    (first, first_bias), *between, (last, last_bias) = layers
    numbers, *bins = _bins(layers[-1], output_size)
    first = _inputs(first, bins).reshape(len(first), -1, *bins).transpose(0, 2, 3, 1).reshape(first.shape)
    last, last_bias = (
        array.reshape(numbers, *bins, -1).transpose(1, 2, 0, 3).reshape(array.shape) for array in (last, last_bias)
    )
    return [(first, first_bias), *between, (last, last_bias)]


def _from_flax(layers: Layers, output_size: OutputSize) -> Layers:
    (first, first_bias), *between, (last, last_bias) = layers
    numbers, *bins = _bins(layers[-1], output_size)
    first = _inputs(first, bins).reshape(len(first), *bins, -1).transpose(0, 3, 1, 2).reshape(first.shape)
    last, last_bias = (
        array.reshape(*bins, numbers, -1).transpose(2, 0, 1, 3).reshape(array.shape) for array in (last, last_bias)
    )
    return [(first, first_bias), *between, (last, last_bias)]


def _side_by_side(offsets: Layers, masks: Layers) -> Layers:
    """One branch that computes the same as two.

    The hidden features of the masks pass its second layer unchanged, because none of them is negative.
    """
    (offset0, offset1, offset2), (mask0, mask2) = offsets, masks
    hidden = mask0[1].size
    unchanged = np.eye(hidden, dtype=mask0[0].dtype), np.zeros_like(mask0[1])
    first = np.concatenate([offset0[0], mask0[0]]), np.concatenate([offset0[1], mask0[1]])
    return [first, _diagonal(offset1, unchanged), _diagonal(offset2, mask2)]


def _apart(layers: Layers) -> dict[str, Layers]:
    """The two branches of equal size from which `_side_by_side` made this one."""
    (weight0, bias0), (weight1, bias1), (weight2, bias2) = layers
    hidden, outputs = bias0.size // 2, 2 * bias2.size // 3
    offsets = [
        (weight0[:hidden], bias0[:hidden]),
        (weight1[:hidden, :hidden], bias1[:hidden]),
        (weight2[:outputs, :hidden], bias2[:outputs]),
    ]
    masks = [(weight0[hidden:], bias0[hidden:]), (weight2[outputs:, hidden:], bias2[outputs:])]
    if bias0.size % 2 or not jax.tree.all(jax.tree.map(np.array_equal, _side_by_side(offsets, masks), list(layers))):
        raise ValueError(
            "a pooling layer whose branch predicts offsets and masks from the same hidden numbers cannot be written as "
            "offset_fc and mask_fc: style must be 'dcnv2', which has offset_mask_fc"
        )
    return {"offset_fc": offsets, "mask_fc": masks}


def _diagonal(upper: Linear, lower: Linear) -> Linear:
    above = np.zeros((len(upper[0]), lower[0].shape[1]), upper[0].dtype)
    below = np.zeros((len(lower[0]), upper[0].shape[1]), lower[0].dtype)
    return np.block([[upper[0], above], [below, lower[0]]]), np.concatenate([upper[1], lower[1]])


def _bins(last: Linear, output_size: OutputSize) -> tuple[int, int, int]:
    """How many values the last layer predicts per bin, and the rows and columns of bins."""
    outputs = last[1].size
    for numbers in (2, 3):
        side = math.isqrt(outputs // numbers)
        rows, columns = output_size or (side, side)
        if numbers * rows * columns == outputs:
            return numbers, rows, columns
    bins = f"output_size={output_size}" if output_size else "as many rows as columns of bins (see output_size)"
    raise ValueError(f"a branch with {outputs} outputs does not predict two or three numbers for {bins}")


def _inputs(weight: np.ndarray, bins: Sequence[int]) -> np.ndarray:
    if weight.shape[1] % math.prod(bins):
        raise ValueError(f"a branch with {weight.shape[1]} inputs does not read the {math.prod(bins)} bins of a region")
    return weight
