"""Values and first derivatives against the numpy reference, for all shapes and types."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.aggregation.cases import CASES, Attention, Convolution, Operands
from tests.helpers.deform_conv.cases import assert_close
from tests.helpers.operators import pull_back

# The others of the reference are thorough: its programs take long to compile.
BY_REFERENCE = "attention_on_pixels", "discrete", "remove_center", "strided_dilated"


@pytest.mark.parametrize(
    "name, backend",
    [
        *((name, None) for name in CASES),
        *(
            pytest.param(name, "reference", marks=() if name in BY_REFERENCE else pytest.mark.thorough)
            for name in CASES
        ),
    ],
)
def test_the_numpy_reference(name, backend, x64):
    case = CASES[name]
    operands, cotangent = case.operands(), case.cotangent()
    actual = pull_back(case.with_backend(backend), cotangent, operands)
    assert_close(actual, case.expected(cotangent, operands))


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-4), ("bfloat16", 3e-2), ("float16", 4e-3)])
@pytest.mark.parametrize("name", ["attention", "many_channels", "discrete", "dcnv3"])
def test_dtypes(name, dtype, tolerance):
    """A low-precision result and gradient is rounded once."""
    case = CASES[name]
    operands = Operands(*(jnp.asarray(array, "float32") for array in case.operands()))
    operands = operands._replace(value=operands.value.astype(dtype))
    cotangent = jnp.asarray(case.cotangent(), dtype)
    result, gradients = pull_back(case.with_backend(), cotangent, operands)
    assert [array.dtype.name for array in (result, *gradients)] == [dtype, dtype, "float32", "float32"]
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda array: np.asarray(array, np.float64), (cotangent, operands))
        expected = pull_back(case.with_backend(), *exact)
    for actual, wide in zip((result, *gradients), (expected[0], *expected[1]), strict=True):
        assert_close(actual, wide, tolerance, tolerance * np.abs(wide).max())


def test_offsets_and_masks_of_16_bits():
    """They are widened, and their gradients rounded."""
    case = CASES["dcnv3"]
    operands = Operands(*(jnp.asarray(array, jnp.bfloat16) for array in case.operands()))
    cotangent = jnp.asarray(case.cotangent(), jnp.bfloat16)
    result, gradients = pull_back(case.with_backend(), cotangent, operands)
    wide = operands._replace(locations=operands.locations.astype("float32"), weights=operands.weights.astype("float32"))
    expected, wide_gradients = pull_back(case.with_backend(), cotangent, wide)
    np.testing.assert_array_equal(result, expected)
    for actual, exact in zip(gradients, wide_gradients, strict=True):
        np.testing.assert_array_equal(actual, exact.astype(jnp.bfloat16))


@pytest.mark.parametrize("backend", [None, pytest.param("reference", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "case",
    [
        Attention(queries=0),
        Attention(channels=0),
        Attention(heads=0),
        Convolution(image=(2, 2), padding=((0, 0),) * 2),  # no output
        Convolution(image=(0, 3), padding=((2, 2), (2, 2))),
        Convolution(image=(3, 0), padding=((2, 2), (2, 2))),
    ],
    ids=["queries", "channels", "heads", "output", "rows", "columns"],
)
def test_nothing_to_compute(case, backend):
    operands, cotangent = case.operands(), case.cotangent()
    operands = Operands(*map(np.float32, operands))
    result, gradients = pull_back(case.with_backend(backend), np.float32(cotangent), operands)
    assert result.shape == cotangent.shape
    assert not any(np.any(array) for array in (result, *gradients))
