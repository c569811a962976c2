"""Derivatives at non-differentiable points, by the written rule, and no more derivatives than are requested."""

import functools
import re

import jax
import numpy as np
import pytest

import jax_dcn
from tests.helpers.deform_conv.cases import BACKENDS, CASES, assert_close, cast, convolve, explicit_gradients
from tests.helpers.operators import compiled_pull_back

IMAGE = np.array([[1.0, 4.0, 9.0], [16.0, 25.0, 36.0]])
NON_DIFFERENTIABLE_POINTS = [
    # location (y, x), derivatives with respect to dy and dx: right-hand at an integer, zero from -1 and the size on
    ((0, 0), (16 - 1, 4 - 1)),
    ((0, 1.5), ((25 + 36) / 2 - (4 + 9) / 2, 9 - 4)),
    ((1, 2), (-36, -36)),
    ((1, 0), (-16, 25 - 16)),
    ((0, 2), (36 - 9, -9)),
    ((-0.5, 0), (1, (4 - 1) / 2)),
    ((0.5, -0.5), ((16 - 1) / 2, (1 + 16) / 2)),
    ((-1, 0), (0, 0)),
    ((-1, -1), (0, 0)),
    ((0, -1), (0, 0)),
    ((2, 1), (0, 0)),
    ((1, 3), (0, 0)),
    ((-1, 1.5), (0, 0)),
    ((2, 0.5), (0, 0)),
    ((0.5, 3), (0, 0)),
    ((-2, 0), (0, 0)),
    ((1.5, 0), (-16, (25 - 16) / 2)),
    ((0, 2.5), ((36 - 9) / 2, -9)),
]


@pytest.mark.platforms("cpu")
@pytest.mark.parametrize("case, is_filled", [("plain", False), ("empty_output", True)])
def test_the_gradient_of_x_on_a_gpu_is_filled_only_where_no_kernel_writes_it(case, is_filled):
    operands = cast(CASES[case].operands(), "bfloat16")

    def of_x(x):
        return convolve(operands._replace(x=x), **CASES[case].keywords).sum()

    program = jax.jit(jax.grad(of_x)).trace(operands.x).lower(lowering_platforms=("cuda",)).as_text()
    shape = "x".join(map(str, operands.x.shape))
    is_allocated = re.search(rf"AllocateBuffer.*tensor<{shape}xbf16>", program) is not None
    assert is_allocated is not is_filled


@pytest.mark.parametrize("backend", BACKENDS)
def test_offset_derivative_at_non_differentiable_points(backend):
    locations, derivatives = (np.array(column, np.float32) for column in zip(*NON_DIFFERENTIABLE_POINTS, strict=True))
    count = len(locations)
    x = np.broadcast_to(np.float32(IMAGE)[..., None], (count, 2, 3, 1))
    offset, cotangent = np.zeros((count, 2, 3, 2), np.float32), np.zeros((count, 2, 3, 1), np.float32)
    offset[:, 0, 0], cotangent[:, 0, 0] = locations, 1
    weight = np.ones((1, 1, 1, 1), np.float32)
    pull_back = jax.jit(functools.partial(jax_dcn.deform_conv2d_offset_grad, backend=backend))
    np.testing.assert_array_equal(pull_back(cotangent, x, offset, weight)[:, 0, 0], derivatives)
    apply = jax.jit(lambda offset: jax_dcn.deform_conv2d(x, offset, weight, backend=backend))
    for axis in range(2):
        direction = np.zeros_like(offset)
        direction[..., axis] = 1
        _, forward = jax.jvp(apply, (offset,), (direction,))
        np.testing.assert_array_equal(forward[:, 0, 0, 0], derivatives[:, axis])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_second_derivative_is_the_mixed_one(backend, x64):
    """Between four pixels the form is bilinear: zero for dy twice or dx twice, v00 - v01 - v10 + v11 for both."""

    def sample(offset):
        grid = np.zeros((2, 3, 2))
        weight = np.ones((1, 1, 1, 1))
        return jax_dcn.deform_conv2d(IMAGE[..., None], grid + offset, weight, backend=backend)[0, 0, 0]

    hessian = jax.jit(jax.hessian(sample))
    mixed = 1 - 4 - 16 + 25
    for offset in ([0.3, 0.6], [0.0, 0.0]):
        np.testing.assert_allclose(hessian(np.array(offset)), [[0, mixed], [mixed, 0]], atol=1e-12)
    np.testing.assert_array_equal(hessian(np.array([-1.0, 0.5])), np.zeros((2, 2)))


@pytest.mark.parametrize(
    "name, backend",
    [(name, None) for name in ("circular", "strided_dilated", "4_groups_6_offset_groups")] + [("plain", "reference")],
)
def test_explicit_gradients(name, backend):
    case = CASES[name]
    operands, cotangent = cast((case.operands(), case.cotangent()), np.float32)
    _, gradients = compiled_pull_back(case, backend)(cotangent, operands)
    explicit = jax.jit(lambda *a: explicit_gradients(*a, backend=backend, **case.keywords))(cotangent, operands)
    assert_close(explicit, gradients._replace(bias=None), 1e-5, 1e-5)
