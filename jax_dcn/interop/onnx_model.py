"""Exports layers as ONNX models."""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_dcn import _validation
from jax_dcn._operators.deform_conv import geometry
from jax_dcn.interop.parameters import flax_layout, to_torch, torch_layout

_OPSET = 22


def to_onnx(layer: Any, variables: Any = None, *, image_size: Sequence[int] | None = None) -> Any:
    """Exports a deformable convolution layer to ONNX (opset 22): its branch, if it has one, and a ``DeformConv``.

    The model computes in float32 and in ONNX's layout. Its first input is ``x`` [N, in, H, W]. If the layer has no
    branch, it also has the inputs ``offset`` [N, 2·G·K, Ho, Wo] and, if modulated, ``mask`` [N, G·K, Ho, Wo]. Its
    output is ``y`` [N, features, Ho, Wo]. Use ``onnx.compose`` to insert it into a larger model; its ``add_prefix``
    avoids name clashes.

    Args:
      layer: A :class:`jax_dcn.linen.DeformConv` or :class:`jax_dcn.nnx.DeformConv`.
      variables: The variables of a Linen layer; None for an NNX layer. Without ``conv_offset`` the layer has no branch.
      image_size: Height and width of ``x``, which padding "SAME" needs. None means any.

    Returns:
      An ``onnx.ModelProto``, for ``onnx.save`` or ``onnxruntime``.

    Raises:
      ImportError: If the package onnx is not installed.
      TypeError: For a layer of another kind, or variables that are missing or not allowed.
      ValueError: For variables of another module, and for options that ONNX does not have: circular or negative
        padding, or padding "SAME" without an image size.

    References:
      DeformConv-22 of the ONNX operator schemas, https://onnx.ai/onnx/operators/onnx__DeformConv.html.

    Example:
      >>> from flax import nnx
      >>> from jax_dcn import interop
      >>> from jax_dcn.nnx import DeformConv
      >>> model = interop.to_onnx(DeformConv(4, 8, (3, 3), padding=1, rngs=nnx.Rngs(0)))
      >>> [node.op_type for node in model.graph.node]
      ['Conv', 'Split', 'Sigmoid', 'Mul', 'DeformConv']
    """
    from onnx import TensorProto, checker, helper, numpy_helper

    arrays = {name: array.astype(np.float32) for name, array in to_torch(_parameters(layer, variables)).items()}
    if "weight" not in arrays:
        raise ValueError(f"variables must be those of the layer alone, with a kernel, got {', '.join(arrays)}")
    if layer.kernel_transform is not None:
        kernel = jnp.asarray(flax_layout("kernel", arrays["weight"]), layer.param_dtype)
        arrays["weight"] = torch_layout("kernel", np.asarray(layer.kernel_transform(kernel), np.float32))
    features, group_features, *kernel_size = arrays["weight"].shape
    samples = layer.offset_groups * math.prod(kernel_size)
    if len(kernel_size) != 2:
        raise ValueError(f"layer must have a kernel of two axes, as ONNX's DeformConv, got {tuple(kernel_size)}")
    if image_size is not None:
        image_size = _validation.pair("image_size", image_size)
    window = _window(layer, image_size, kernel_size)
    inputs = {"x": group_features * layer.feature_group_count}
    nodes, offset, mask = [], "offset", "mask" if layer.modulated else ""

    if "conv_offset.weight" not in arrays:
        inputs |= {"offset": 2 * samples} | ({"mask": samples} if layer.modulated else {})
    else:
        branch = [name for name in ("conv_offset.weight", "conv_offset.bias") if name in arrays]
        nodes.append(helper.make_node("Conv", ["x", *branch], ["raw" if layer.modulated else "offset"], **window))
        if layer.modulated:
            arrays |= {"split": np.array([2 * samples, samples]), "mask_scale": np.array(layer.mask_scale, np.float32)}
            nodes += [
                helper.make_node("Split", ["raw", "split"], ["offset", "logits"], axis=1),
                helper.make_node("Sigmoid", ["logits"], ["sigmoid"]),
                helper.make_node("Mul", ["sigmoid", "mask_scale"], ["mask"]),
            ]
        if layer.offset_bound is not None:
            arrays["offset_bound"] = np.array(layer.offset_bound, np.float32)
            nodes += [
                helper.make_node("Div", ["offset", "offset_bound"], ["ratio"]),
                helper.make_node("Tanh", ["ratio"], ["tanh"]),
                helper.make_node("Mul", ["tanh", "offset_bound"], ["bounded_offset"]),
            ]
            offset = "bounded_offset"
    operands = ["x", "weight", offset, "bias" if "bias" in arrays else "", mask]
    groups: dict[str, Any] = {"group": layer.feature_group_count, "offset_group": layer.offset_groups}
    nodes.append(helper.make_node("DeformConv", operands, ["y"], **groups, **window))

    def tensor(name: str, channels: int) -> Any:
        size = image_size if name == "x" and image_size is not None else (None, None)
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", channels, *size])

    graph = helper.make_graph(
        nodes,
        "DeformConv",
        [tensor(name, channels) for name, channels in inputs.items()],
        [tensor("y", features)],
        [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    version = helper.find_min_ir_version_for(opsets)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=version, producer_name="jax_dcn")
    checker.check_model(model, full_check=True)
    return model


def _parameters(layer: Any, variables: Any) -> Any:
    from jax_dcn import linen, nnx

    if isinstance(layer, linen.DeformConv):
        if variables is None:
            raise TypeError("variables must be given for a Linen layer")
        return variables
    if not isinstance(layer, nnx.DeformConv):
        raise TypeError(f"layer must be a DeformConv of jax_dcn.linen or jax_dcn.nnx, got {type(layer).__name__}")
    if variables is not None:
        raise TypeError("variables must be None for an NNX layer, which has its own")
    return layer


def _window(layer: Any, image_size: Sequence[int] | None, kernel_size: Sequence[int]) -> dict[str, Any]:
    """The attributes that Conv and DeformConv of ONNX share."""
    if image_size is None and layer.padding in ("SAME", "SAME_LOWER"):
        raise ValueError(f"image_size must be given with padding={layer.padding!r}, which depends on it")
    settings = {name: getattr(layer, name) for name in ("strides", "padding", "kernel_dilation")}
    found = geometry.resolve(image_size or (1, 1), kernel_size, **settings)
    (top, bottom), (left, right) = found.padding
    pads = (top, left, bottom, right)
    if found.circular or min(pads) < 0:
        raise ValueError(f"padding must be one that ONNX has, neither circular nor negative, got {layer.padding!r}")
    return {"kernel_shape": kernel_size, "strides": found.strides, "dilations": found.kernel_dilation, "pads": pads}
