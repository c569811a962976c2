"""Conversion between channels last and the layout of torchvision and ONNX."""

import numpy as np


def to_nchw(name, array):
    """Converts the operand of an operator with this name, or its result "y"."""
    if name in ("rois", "grid"):
        return np.asarray(array)
    return np.ascontiguousarray(np.transpose(array, (3, 2, 0, 1)) if name == "weight" else np.moveaxis(array, -1, 1))


def to_nhwc(name, array):
    if name == "grid":
        return array
    return np.transpose(array, (2, 3, 1, 0)) if name == "weight" else np.moveaxis(array, 1, -1)
