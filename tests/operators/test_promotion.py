"""Programs of users who forbid implicit promotion of dtypes or of ranks: what the package documents works there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_dcn import linen
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


X, QUERY, VALUE = jnp.ones((2, 8, 8, 8)), jnp.ones((2, 5, 8)), jnp.ones((2, 20, 8))
LEVELS = (4, 4), (2, 2)
LAYERS = {
    "DeformConv": (linen.DeformConv, {"features": 4, "kernel_size": 3}, (X,)),
    "DCNv3": (linen.DCNv3, {"groups": 2, "center_feature_scale": True}, (X,)),
    "DCNv4": (linen.DCNv4, {"groups": 2, "center_feature_scale": True, "dw_kernel_size": 3}, (X,)),
    "points": (linen.MultiScaleDeformableAttention, {}, (QUERY, jnp.full((2, 5, 1, 2), 0.5), VALUE)),
    "boxes": (linen.MultiScaleDeformableAttention, {}, (QUERY, jnp.full((2, 5, 1, 4), 0.5), VALUE)),
}


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, dtype):
    kind, options, inputs = LAYERS[name]
    if kind is linen.MultiScaleDeformableAttention:
        options = {"features": 8, "num_heads": 2, "num_levels": 2, "spatial_shapes": LEVELS}
    layer = kind(**options, dtype=dtype)

    def step(key):
        variables = layer.init(key, *inputs)
        return jax.grad(lambda variables: layer.apply(variables, *inputs).sum(dtype=jnp.float32))(variables)

    assert jax.jit(step).lower(jax.random.key(0)).as_text()
