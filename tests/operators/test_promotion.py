"""Programs of users who forbid implicit promotion of dtypes or of ranks: what the package documents works there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.layers import build, linen_layer, queries
from tests.helpers.operators import EACH_PRIMITIVE, each_operator, loss, pull_back

pytestmark = pytest.mark.platforms("cpu")


@pytest.fixture(autouse=True, params=["dtypes", "ranks"])
def forbidden(request):
    if request.param == "dtypes":
        with jax.numpy_dtype_promotion("strict"):
            yield
    else:
        with jax.numpy_rank_promotion("raise"):
            yield


def narrow_operands(operator):
    """Operands of an operator: its data of bfloat16, and its positions of float32."""
    data, operands = {operator.names[0], *operator.shared}, operator.smooth
    arrays = {
        name: None if array is None else jnp.asarray(array, jnp.bfloat16 if name in data else np.float32)
        for name, array in operands._asdict().items()
    }
    return type(operands)(**arrays)


@each_operator(*EACH_PRIMITIVE, others=pytest.mark.slow)
def test_operators(operator):
    """The value and the derivatives in both modes are lowered, by kernels, and second derivatives by the reference."""
    function = operator.small.with_backend()

    def derivatives(operands):
        tangent = jax.jvp(lambda operands: function(*operands), (operands,), (operands,))
        curvature = jax.jvp(jax.grad(lambda operands: loss(function, operands)), (operands,), (operands,))
        return tangent, curvature, pull_back(function, tangent[0], operands)

    assert jax.jit(derivatives).lower(narrow_operands(operator)).as_text()


LAYERS = [  # and what the reference points of an attention are
    ("DeformConv", {}, None),
    ("DCNv3", {"center_feature_scale": True}, None),
    ("DCNv4", {"center_feature_scale": True, "dw_kernel_size": 3}, None),
    *(("MultiScaleDeformableAttention", {}, coordinates) for coordinates in (2, 4)),
]


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16], ids=str)
@pytest.mark.parametrize("name, arguments, coordinates", LAYERS)
def test_layers(name, arguments, coordinates, dtype):
    layer, inputs = build(linen_layer, name, **arguments, dtype=dtype)
    inputs = queries(coordinates=coordinates) if coordinates else inputs

    def loss(params):
        return layer.apply(params, *inputs).sum(dtype=jnp.float32)

    assert jax.jit(jax.grad(loss)).lower(layer.params).as_text()
