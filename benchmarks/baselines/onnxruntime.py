"""DeformConv of onnxruntime (opset 22), on the CPU."""

import jax
import numpy as np

from benchmarks.baselines import Call, Unavailable
from benchmarks.baselines.layout import to_nchw, to_nhwc
from benchmarks.support import memory
from benchmarks.support.machine import cores

INPUTS = {"X": "x", "W": "weight", "offset": "offset", "mask": "mask"}  # ONNX's names: ours


def prepare(problem, backward):
    if jax.default_backend() != "cpu":
        raise Unavailable("runs on the CPU here")
    if backward:
        raise Unavailable("has no backward pass")
    if problem.dtype == "bfloat16":
        raise Unavailable("has no bfloat16 on the CPU")
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise Unavailable(f"cannot be imported ({error})") from error
    inputs = {
        theirs: to_nchw(ours, np.asarray(problem.operands[ours], problem.dtype)) for theirs, ours in INPUTS.items()
    }
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    try:
        session = onnxruntime.InferenceSession(
            model(onnx, inputs, problem).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        raise Unavailable(f"has no {problem.dtype} on the CPU") from error
    return Call(
        start=lambda: session.run(None, inputs)[0],
        wait=lambda _: None,
        arrays=lambda y: {"y": to_nhwc("y", y.astype(np.float32))},
        held=memory.of_process,
    )


def model(onnx, inputs, problem):
    helper = onnx.helper
    type_ = helper.np_dtype_to_tensor_dtype(inputs["X"].dtype)
    stride, dilation, groups = (problem.options[name] for name in ("stride", "dilation", "groups"))
    node = helper.make_node(
        "DeformConv",
        ["X", "W", "offset", "", "mask"],
        ["y"],
        kernel_shape=inputs["W"].shape[2:],
        strides=[stride] * 2,
        dilations=[dilation] * 2,
        pads=[dilation] * 4,
        group=groups,
        offset_group=inputs["mask"].shape[1] // (inputs["W"].shape[2] * inputs["W"].shape[3]),
    )
    graph = helper.make_graph(
        [node],
        "deform_conv2d",
        [helper.make_tensor_value_info(name, type_, array.shape) for name, array in inputs.items()],
        [helper.make_tensor_value_info("y", type_, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
