"""Every dimension of every operand sharded over an Explicit mesh, where the results' sizes cannot be sharded alike.

An operator must then replicate what it cannot shard, rather than raise an error.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.helpers.aggregation.cases import Convolution as Window
from tests.helpers.deform_conv.cases import Case, assert_close, cast
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.operators import OPERATORS
from tests.helpers.sharding import make_mesh, place

pytestmark = pytest.mark.platforms("cpu")

# Even sizes of the operands, and odd ones of the result.
SMALLER = {
    "strided": Case("strided", (6, 6), 4, 3, (3, 3), convolution=Convolution(2, 1)),
    "without_padding": Case("without_padding", (8, 8), 4, 6, (2, 2), convolution=Convolution(padding="VALID")),
    "windows": Window((2, 2), padding=((0, 0), (0, 0)), groups=2, channels=2, image=(8, 8)),
    "three_groups": Window((2, 2), padding=((0, 0), (0, 0)), groups=3, channels=2, image=(8, 8)),
}
CASES = {name: operator.case for name, operator in OPERATORS.items()} | SMALLER


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["types", "values"])
@pytest.mark.parametrize("name", CASES)
def test_any_dimension(name, compiled):
    case, mesh = CASES[name], make_mesh("Explicit", (2,))
    is_convolution = "conv" in name or isinstance(case, Case)  # which has a batch of its own
    operands = cast(case.operands(lead=() if is_convolution else (2,)), np.float32)

    def run(operands):
        result, pull_back = jax.vjp(lambda operands: case.with_backend()(*operands), operands)
        return result, *pull_back(jnp.cos(result))

    whole, replicated = run(operands), dict.fromkeys(operands._fields, P())
    for field, array in operands._asdict().items():
        for dimension in (k for k, size in enumerate(np.shape(array)) if size % 2 == 0):
            spec = P(*[None] * dimension, "a")
            placed = place(mesh, operands, (replicated | {field: spec}).values())
            with jax.set_mesh(mesh):
                _, gradients = jax.eval_shape(run, placed)
                expected = NamedSharding(mesh.abstract_mesh, spec)
                assert getattr(gradients, field).sharding.is_equivalent_to(expected, array.ndim), (field, dimension)
                if compiled:
                    assert_close(jax.jit(run)(placed), whole, 1e-4, 1e-4)
