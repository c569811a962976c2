"""Weights and layers to and from other libraries.

`load` reads a checkpoint file, `from_torch` makes Flax parameters of what is in it, `to_torch` goes the other way, and
`to_onnx` makes an ONNX model of a layer.
"""

from jax_dcn.interop.checkpoint import load
from jax_dcn.interop.onnx_model import to_onnx
from jax_dcn.interop.parameters import from_torch, to_torch

__all__ = ["from_torch", "load", "to_onnx", "to_torch"]
