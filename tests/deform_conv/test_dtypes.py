"""All element types, and mixtures of them, against float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from tests.helpers.deform_conv.cases import BACKENDS, Case, Operands, pull_back
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.operators import compiled_pull_back

pytestmark = pytest.mark.optimized

CASE = Case("typed", (4, 5), 6, 4, (3, 3), 2, (2,), Convolution(padding="SAME", feature_group_count=2))
LOW = ("float16", "bfloat16")

# (x, offset, weight, bias, mask) and the result
MIXTURES = [
    *((dtype, dtype, dtype, dtype, dtype, dtype) for dtype in (*LOW, "float32", "float64")),
    ("bfloat16", "float32", "bfloat16", "bfloat16", "float32", "bfloat16"),
    ("float16", "float32", "float16", "float32", "float32", "float16"),
    ("bfloat16", "float32", "bfloat16", "float32", "bfloat16", "bfloat16"),
    ("float32", "float32", "bfloat16", "bfloat16", "float32", "float32"),
    ("bfloat16", "bfloat16", "float32", "float32", "bfloat16", "float32"),
    ("float16", "bfloat16", "bfloat16", "bfloat16", "float16", "float32"),
    ("float32", "float64", "float32", "float32", "float32", "float32"),
    ("float32", "float32", "float32", "float32", "float64", "float32"),
    ("float64", "float32", "float64", "float64", "float32", "float64"),
]


in_16_bits = pytest.mark.parametrize(
    "dtype, backend",
    [
        *((dtype, None) for dtype in LOW),
        ("bfloat16", "im2col"),
        ("bfloat16", "reference"),
        pytest.param("float16", "reference", marks=pytest.mark.thorough),
    ],
)


def resolution(*dtypes):
    return max(float(jnp.finfo(dtype).eps) for dtype in dtypes)


# The reference, whose programs take long to compile, computes with only some of them by default.
TYPES = [
    pytest.param(
        mixture,
        backend,
        marks=pytest.mark.thorough if backend and k not in (1, 2, 5, 10) else (),
        id="-".join((*mixture, backend or "kernels")),
    )
    for backend in BACKENDS
    for k, mixture in enumerate(MIXTURES)
]


@pytest.mark.parametrize("mixture, backend", TYPES)
def test_against_float64(mixture, backend, x64):
    """Operands of a type are exact in float64, so all that may differ is rounding: about one of each step's result."""
    *dtypes, of_result = mixture
    exact = CASE.operands(offset_scale=1.0, grid=8)
    operands = Operands(*(jnp.asarray(a, dtype) for a, dtype in zip(exact, dtypes, strict=True)))
    cotangent = jnp.asarray(CASE.cotangent(), of_result)
    y, gradients = compiled_pull_back(CASE, backend)(cotangent, operands)
    widened = Operands(*(np.asarray(a, np.float64) for a in operands))
    exact_y, exact_gradients = CASE.expected(np.asarray(cotangent, np.float64), widened)

    assert y.dtype == of_result
    assert [g.dtype for g in gradients] == dtypes
    data = dtypes[0], dtypes[2], of_result
    for actual, exact, own in zip((y, *gradients), (exact_y, *exact_gradients), (of_result, *dtypes), strict=True):
        error = np.abs(np.asarray(actual, np.float64) - exact).max()
        assert error <= 4 * resolution(own, *data) * np.abs(exact).max()


@pytest.mark.parametrize("name", ["input", "offset", "weight", "mask"])
def test_explicit_gradients_have_the_type_of_their_operand(name):
    dtypes = "bfloat16", "float32", "float16", "float32", "float32"
    operands = Operands(*(jnp.asarray(a, dtype) for a, dtype in zip(CASE.operands(), dtypes, strict=True)))
    x, offset, weight, _, mask = operands
    cotangent = jnp.asarray(CASE.cotangent(), "float32")
    function = functools.partial(getattr(jax_dcn, f"deform_conv2d_{name}_grad"), **CASE.keywords)
    gradient = jax.eval_shape(function, cotangent, x, offset, weight, mask)
    operand = operands.x if name == "input" else getattr(operands, name)
    assert (gradient.shape, gradient.dtype) == (operand.shape, operand.dtype)


MANY = 4096  # more ones than float16 (2048) or bfloat16 (256) can count


@in_16_bits
def test_sums_over_channels_are_wide(dtype, backend):
    """Each channel adds one to the value and, of each of 8 features, to the gradients of offset and mask."""
    x = jnp.broadcast_to(jnp.arange(2, dtype=dtype)[:, None], (1, 1, 2, MANY))[:, :, ::-1]
    operands = Operands(
        x, jnp.zeros((1, 1, 2, 2), dtype), jnp.ones((1, 1, MANY, 8), dtype), None, jnp.ones((1, 1, 2, 1), dtype)
    )
    cotangent = jnp.zeros((1, 1, 2, 8), dtype).at[0, 0, 0].set(1)
    y, gradients = jax.jit(functools.partial(pull_back, backend=backend))(cotangent, operands)
    np.testing.assert_array_equal(y[0, 0, 0].astype(jnp.float32), np.full(8, MANY))
    assert gradients.offset[0, 0, 0, 1] == -8 * MANY
    assert gradients.mask[0, 0, 0, 0] == 8 * MANY


@in_16_bits
def test_sums_over_pixels_are_wide(dtype, backend):
    """All output pixels sample the same pixel, so each adds one to the gradients of weight and bias, and 8 to x's."""
    rows, columns = np.divmod(np.arange(MANY), 64)
    offset = -np.stack([rows, columns], -1).reshape(1, 64, 64, 2)
    x, weight = jnp.ones((1, 64, 64, 32), dtype), jnp.ones((1, 1, 32, 8), dtype)
    operands = Operands(x, jnp.asarray(offset, dtype), weight, jnp.zeros(8, dtype))
    cotangent = jnp.ones((1, 64, 64, 8), dtype)
    _, gradients = jax.jit(functools.partial(pull_back, backend=backend))(cotangent, operands)
    d_x, d_weight, d_bias = (np.float32(gradient) for gradient in (gradients.x, gradients.weight, gradients.bias))
    assert (d_x[0, 0, 0] == 8 * MANY).all() and d_x.sum() == 8 * MANY * 32
    assert (d_weight == MANY).all() and (d_bias == MANY).all()


@in_16_bits
def test_locations_are_wide(dtype, backend):
    """Column 2999 of a wide image is no number of either 16-bit type, and half a pixel beside it even less."""
    x = jnp.asarray(np.arange(3000) % 7, dtype).reshape(1, 3000, 1)
    identity = jnp.ones((1, 1, 1, 1), dtype)
    run = jax.jit(functools.partial(jax_dcn.deform_conv2d, backend=backend))
    np.testing.assert_array_equal(run(x, jnp.zeros((1, 3000, 2), dtype), identity), x)
    half = jnp.zeros((1, 3000, 2), dtype).at[..., 1].set(0.5)
    np.testing.assert_array_equal(run(x, half, identity)[0, :-1, 0], ((x[0, 1:] + x[0, :-1]) / 2)[:, 0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_float64_offset_keeps_its_places(backend, x64):
    """On float32 data: the location is float64's, far finer than float32's steps around 3000."""
    x = jnp.asarray(2.0 ** np.arange(2), jnp.float32)
    x = jnp.zeros((1, 3000, 1), jnp.float32).at[0, -2:, 0].set(x)
    offset = jnp.zeros((1, 3000, 2)).at[0, -2, 1].set(2.0**-20)
    run = jax.jit(functools.partial(jax_dcn.deform_conv2d, backend=backend))
    y = run(x, offset, jnp.ones((1, 1, 1, 1), jnp.float32))
    assert y.dtype == jnp.float32
    assert y[0, -2, 0] == np.float32(1 + 2.0**-20)


@in_16_bits
def test_preferred_element_type(dtype, backend):
    """The sum is not rounded to the data's type, and the gradients keep their operands' types."""
    count = MANY + 1
    operands = Operands(
        jnp.ones((1, 1, count), dtype), jnp.zeros((1, 1, 2), jnp.float32), jnp.ones((1, 1, count, 1), dtype)
    )
    keywords = {"preferred_element_type": jnp.float32, "backend": backend}
    y, gradients = jax.jit(functools.partial(pull_back, **keywords))(jnp.ones((1, 1, 1)), operands)
    assert y.dtype == jnp.float32
    assert y.item() == count
    assert [gradients.x.dtype, gradients.offset.dtype, gradients.weight.dtype] == [dtype, jnp.float32, dtype]
