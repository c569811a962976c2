"""Exports layers and models to ONNX."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from jax_dcn import _validation
from jax_dcn._operators.deform_conv import geometry
from jax_dcn._operators.deform_conv.geometry import Window
from jax_dcn.interop import onnx_nodes
from jax_dcn.interop.parameters import flax_layout, to_torch, torch_layout

_OPSET = 22
_MODEL_OPSET = 20  # the newest that ONNX Runtime, OpenVINO and TensorRT all have of these operators


def to_onnx(layer: Any, variables: Any = None, *, image_size: Sequence[int] | None = None) -> Any:
    """Exports a deformable convolution layer to ONNX (opset 22): its branch, if it has one, and a ``DeformConv``.

    The model computes in float32 and in ONNX's layout. Its first input is ``x`` [N, in, H, W]. If the layer has no
    branch, it also has the inputs ``offset`` [N, 2·G·K, Ho, Wo] and, if modulated, ``mask`` [N, G·K, Ho, Wo]. Its
    output is ``y`` [N, features, Ho, Wo]. Use ``onnx.compose`` to insert it into a larger model; its ``add_prefix``
    avoids name clashes.

    Args:
      layer: A :class:`jax_dcn.linen.DeformConv` or :class:`jax_dcn.nnx.DeformConv`.
      variables: The variables of a Linen layer; None for an NNX layer. Without ``conv_offset`` the layer has no branch.
      image_size: Height and width of ``x``, which padding "SAME" and an ``offset_limit`` that is a function need. None
        means any.

    Returns:
      An ``onnx.ModelProto``, for ``onnx.save`` or ``onnxruntime``.

    Raises:
      ImportError: If the package onnx is not installed.
      TypeError: For a layer of another kind, or variables that are missing or not allowed.
      ValueError: For variables of another module, and for options that ONNX does not have: circular or negative
        padding, or without an image size padding "SAME" and an ``offset_limit`` that is a function.

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

    from jax_dcn._layers.deform_conv import pixel_limit

    arrays = {name: array.astype(np.float32) for name, array in to_torch(_parameters(layer, variables)).items()}
    if "weight" not in arrays:
        raise ValueError(f"variables must be those of the layer alone, with a kernel, got {', '.join(arrays)}")
    if layer.kernel_transform is not None:
        kernel = jnp.asarray(flax_layout("kernel", arrays["weight"]), layer.param_dtype)
        arrays["weight"] = torch_layout("kernel", np.asarray(layer.kernel_transform(kernel), np.float32))
    features, group_features, *kernel_size = arrays["weight"].shape
    samples = layer.offset_groups * math.prod(kernel_size)
    if image_size is not None:
        image_size = _validation.pair("image_size", image_size)
    window = _window(layer, image_size, kernel_size)
    groups = layer.feature_group_count, layer.offset_groups
    attributes = onnx_nodes.deform_conv(window, kernel_size, *groups, layer.padding)
    inputs = {"x": group_features * layer.feature_group_count}
    nodes, offset, mask = [], "offset", "mask" if layer.modulated else ""

    if "conv_offset.weight" not in arrays:
        inputs |= {"offset": 2 * samples} | ({"mask": samples} if layer.modulated else {})
    else:
        conv = onnx_nodes.conv(window, kernel_size, layer.padding)
        branch = [name for name in ("conv_offset.weight", "conv_offset.bias") if name in arrays]
        nodes.append(helper.make_node("Conv", ["x", *branch], ["raw" if layer.modulated else "offset"], **conv))
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
        if layer.offset_limit is not None:
            if image_size is None and callable(layer.offset_limit):
                raise ValueError("image_size must be given with an offset_limit that is a function of it")
            limit = np.array(pixel_limit(layer.offset_limit, image_size or ()), np.float32)
            arrays |= {"least_offset": -limit, "largest_offset": limit}
            nodes.append(helper.make_node("Clip", ["offset", "least_offset", "largest_offset"], ["clipped_offset"]))
            offset = "clipped_offset"
    operands = ["x", "weight", offset, "bias" if "bias" in arrays else "", mask]
    nodes.append(helper.make_node("DeformConv", operands, ["y"], **attributes))

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


def model_to_onnx(
    function: Callable[..., Any], inputs: Sequence[Any], *, opset: int = _MODEL_OPSET, **options: Any
) -> Any:
    """Exports a function of arrays, such as a Flax model, whole to ONNX, by jax2onnx.

    jax2onnx writes what JAX itself computes. The operators of this package become nodes of ONNX: `deform_conv1d` and
    `deform_conv2d` become ``DeformConv``, `roi_align` ``RoiAlign``, `nms` ``NonMaxSuppression``, and
    `multi_scale_deformable_attention`, `dcnv3`, `grid_sample`, `map_coordinates` and `resize` ``GridSample``, whatever
    their ``backend``. So do the layers that use them. These nodes compute in float32.

    Args:
      function: The function. Close over variables: ``lambda images: model.apply(variables, images)``.
      inputs: The shape of each argument, of float32, or a ``jax.ShapeDtypeStruct``. A dimension of any size is a name,
        such as ``"batch"``.
      opset: The version of ONNX's operators, at least 20. ONNX Runtime 1.32 has no ``RoiAlign`` of version 22.
      options: Further arguments of ``jax2onnx.to_onnx``, such as ``input_names``.

    Returns:
      What ``jax2onnx.to_onnx`` returns, by default an ``onnx.ModelProto``.

    Raises:
      ImportError: If the package jax2onnx is not installed.
      ValueError: For an operator or an option that ONNX does not have, which the message names, for derivatives, and
        for an older ``opset``.
      NotImplementedError: By jax2onnx, for what it cannot export.

    References:
      https://github.com/enpasos/jax2onnx

    Example::

        model = interop.model_to_onnx(lambda images: detector.apply(variables, images), [("batch", 640, 640, 3)])
        onnx.save(model, "detector.onnx")
    """
    if opset < _MODEL_OPSET:
        raise ValueError(f"opset must be at least {_MODEL_OPSET}, got {opset}")
    import jax2onnx

    from jax_dcn.interop import onnx_plugin

    scope = export.SymbolicScope()
    specs = [_spec(shape, scope) for shape in inputs]
    traces = []

    def traced(*arrays: jax.Array) -> Any:
        traces.append(arrays)
        return function(*arrays)

    # While jax2onnx traces, it replaces layers of Flax and functions of jax.numpy, some of them by ones that give other
    # shapes. So it gets a function that `jit` has traced already.
    with onnx_plugin.installed():
        jitted = jax.jit(traced)
        jitted.trace(*specs)
        model = jax2onnx.to_onnx(jitted, specs, opset=opset, **options)
    if len(traces) != 1:
        raise RuntimeError("jax2onnx has traced the function again, which this version of jax_dcn does not expect")
    return model


def _spec(shape: Any, scope: Any) -> jax.ShapeDtypeStruct:
    shape, dtype = (shape.shape, shape.dtype) if hasattr(shape, "shape") else (shape, jnp.float32)
    sizes = [export.symbolic_shape(size, scope=scope)[0] if isinstance(size, str) else size for size in shape]
    return jax.ShapeDtypeStruct(tuple(sizes), dtype)


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


def _window(layer: Any, image_size: Sequence[int] | None, kernel_size: Sequence[int]) -> Window:
    if image_size is None and layer.padding in ("SAME", "SAME_LOWER"):
        raise ValueError(f"image_size must be given with padding={layer.padding!r}, which depends on it")
    settings = {name: getattr(layer, name) for name in ("strides", "padding", "kernel_dilation")}
    return geometry.resolve(image_size or (1, 1), kernel_size, **settings)
