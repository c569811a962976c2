"""Converts weights and layers from and to other libraries.

`load` reads a checkpoint file, `from_torch` converts its arrays to Flax parameters, `to_torch` converts Flax parameters
to a state dict. `to_onnx` exports a layer as an ONNX model, and `model_to_onnx` a whole model.
"""

from jax_dcn.interop.checkpoint import load
from jax_dcn.interop.onnx_model import model_to_onnx, to_onnx
from jax_dcn.interop.parameters import from_torch, to_torch

__all__ = ["from_torch", "load", "model_to_onnx", "to_onnx", "to_torch"]
