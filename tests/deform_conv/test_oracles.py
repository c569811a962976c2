"""Comparisons with the operators of other libraries, if these are installed."""

import numpy as np
import pytest

from tests.helpers.deform_conv.cases import CASES, assert_close, cast, convolve, pull_back, to_nchw

# The cases that other libraries support: one batch dimension, no empty arrays, no torus.
COMMON_CASES = [case for case in CASES if len(case.batch) == 1 and not case.is_empty and not case.convolution.wraps]


@pytest.mark.parametrize("opset, masked", [(19, True), (22, False)])
@pytest.mark.parametrize("case", COMMON_CASES, ids=str)
def test_onnxruntime(case, masked, opset):
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    operands = to_nchw(cast(case.operands(masked=masked), np.float32))
    inputs = {
        "X": operands.x,
        "W": operands.weight,
        "offset": operands.offset,
        "B": operands.bias,
        "mask": operands.mask,
    }
    inputs = {name: np.ascontiguousarray(array) for name, array in inputs.items() if array is not None}
    (top, bottom), (left, right) = case.convolution.explicit_padding(case.image, case.kernel)
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node(
        "DeformConv",
        [name if name in inputs else "" for name in ("X", "W", "offset", "B", "mask")],
        ["y"],
        kernel_shape=case.kernel,
        strides=case.convolution.strides,
        dilations=case.convolution.kernel_dilation,
        pads=(top, left, bottom, right),
        group=case.convolution.feature_group_count,
        offset_group=case.offset_groups,
    )
    graph = helper.make_graph(
        [node],
        case.name,
        [helper.make_tensor_value_info(name, float32, array.shape) for name, array in inputs.items()],
        [helper.make_tensor_value_info("y", float32, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, inputs)
    ours = convolve(operands, data_format="NCHW", precision="highest", **case.keywords)
    assert_close(ours, theirs, 1e-4, 1e-4)


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])
@pytest.mark.parametrize("case", COMMON_CASES, ids=str)
def test_torchvision(case, masked, x64):
    """Away from non-differentiable points, at which its rule differs."""
    torch = pytest.importorskip("torch")
    torchvision = pytest.importorskip("torchvision")
    (top, bottom), (left, right) = case.convolution.explicit_padding(case.image, case.kernel)
    if (top, left) != (bottom, right):
        pytest.skip("torchvision pads both sides alike")
    operands = to_nchw(case.smooth_operands(masked=masked))
    cotangent = np.moveaxis(case.cotangent(), -1, 1)
    x, offset, weight, bias, mask = (
        None if array is None else torch.tensor(np.ascontiguousarray(array), requires_grad=True) for array in operands
    )
    theirs = torchvision.ops.deform_conv2d(
        x,
        offset,
        weight,
        bias,
        stride=case.convolution.strides,
        padding=(top, left),
        dilation=case.convolution.kernel_dilation,
        mask=mask,
    )
    theirs.backward(torch.tensor(np.ascontiguousarray(cotangent)))
    gradients = type(operands)(*(None if t is None else t.grad.numpy() for t in (x, offset, weight, bias, mask)))
    ours = pull_back(cotangent, operands, data_format="NCHW", **case.keywords)
    assert_close(ours, (theirs.detach().numpy(), gradients))
