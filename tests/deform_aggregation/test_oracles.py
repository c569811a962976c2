"""Comparisons with the operators of transformers, where it is installed."""

import numpy as np
import pytest

from tests.helpers.deform_aggregation.cases import Attention, Operands, pull_back
from tests.helpers.deform_conv.cases import assert_close

CASES = {
    "even": Attention(points=(3, 3)),
    "uneven": Attention(((5, 6), (3, 2), (1, 4)), (2, 1, 4), channels=8),
    "discrete": Attention(((5, 6), (3, 2)), (3, 1), method="discrete"),
}


@pytest.mark.parametrize("name", CASES)
def test_transformers(name, x64):
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("transformers.models.rt_detr_v2.modeling_rt_detr_v2")
    case = CASES[name]
    operands, cotangent = case.operands(lead=(2,)), case.cotangent(lead=(2,))
    tensors = [torch.tensor(array, requires_grad=True) for array in operands]
    method = "default" if case.method == "bilinear" else case.method
    value, locations, weights = tensors
    theirs = module.multi_scale_deformable_attention_v2(
        value, list(case.spatial_shapes), locations, weights, list(case.points), method
    )
    theirs.backward(torch.tensor(cotangent))
    # Discrete sampling gives the locations no gradient.
    gradients = [np.zeros(t.shape) if t.grad is None else t.grad.numpy() for t in tensors]
    assert_close(pull_back(cotangent, operands, case.function), (theirs.detach().numpy(), Operands(*gradients)))
