"""The tangent of the convolution by kernels, against the reference."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.deform_conv.cases import CASES, Case, Operands, assert_close, cast, convolve
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.operators import of_some

GROUPED = Case("grouped", (3, 5), 16, 8, (2, 2), 2, (2,), Convolution(padding="SAME", feature_group_count=4))
FUSIBLE = Case("fusible", (3, 5), 16, 8, (2, 2), 2, (2,), Convolution(padding="SAME"))


def tangent(case, names, backend=None):
    """A compiled function of (operands, tangents), of which it takes those in `names`."""

    def push(operands, tangents):
        primals, directions = (tuple(getattr(tree, name) for name in names) for tree in (operands, tangents))
        return jax.jvp(of_some(case.with_backend(backend), operands, names), primals, directions)[1]

    return jax.jit(push)


@pytest.mark.parametrize(
    "case, dtype",
    [*((GROUPED, dtype) for dtype in ("float16", "bfloat16", "float32", "float64")), (CASES["circular"], "float32")],
    ids=str,
)
def test_types(case, dtype, x64):
    """Against the reference in float64, of the same operands, which are exact in it."""
    operands, tangents = (cast(case.operands(seed, 1.0, 8), jnp.dtype(dtype)) for seed in (0, 1))
    exact = tangent(case, Operands._fields, "reference")(*(cast(tree, np.float64) for tree in (operands, tangents)))
    actual = tangent(case, Operands._fields)(operands, tangents)
    assert actual.dtype == dtype
    assert_close(actual, exact, 0, 4 * float(jnp.finfo(dtype).eps) * np.abs(exact).max())


@pytest.mark.platforms("cpu")
@pytest.mark.parametrize("backend, forward_call", [("fused", "dcn_cpu_fused_forward"), ("im2col", "dcn_sample")])
def test_a_requested_path_has_all_derivatives(backend, forward_call):
    """A tangent that is a forward takes this path; all others are the same on both paths."""
    operands = cast(FUSIBLE.operands(), jnp.bfloat16)

    def calls(function):
        lowered = jax.jit(function).lower(operands, operands)
        return set(re.findall(r"custom_call @(dcn_\w+)", lowered.as_text()))

    def loss(operands):
        return jnp.sin(convolve(operands, backend=backend, **FUSIBLE.keywords)).sum()

    for names in [("x",), ("weight",), ("mask",), ("x", "bias")]:
        assert calls(tangent(FUSIBLE, names, backend)) == {forward_call}
    for names in [("offset",), ("x", "weight"), Operands._fields]:
        assert calls(tangent(FUSIBLE, names, backend)) == {"dcn_sample_tangents"}
    assert forward_call in calls(lambda operands, tangents: jax.jvp(jax.grad(loss), (operands,), (tangents,))[1])


@pytest.mark.parametrize("names", [("x", "offset"), ("offset",), ("weight", "mask", "bias"), ("bias",)], ids="+".join)
def test_values_that_are_not_finite(names, x64):
    """In locations, in pixels and, for a part of the operands, in their tangents; absent tangents have no effect."""
    case = CASES["plain"]
    operands, tangents = case.operands(), case.operands(1)
    random = np.random.default_rng(0)

    def spoiled(array):
        for value in (np.nan, np.inf):
            array = np.where(random.uniform(size=array.shape) < 0.01, value, array)
        return array

    operands = operands._replace(offset=spoiled(operands.offset), x=spoiled(operands.x))
    tangents = tangents._replace(x=spoiled(tangents.x))
    actual, expected = (tangent(case, names, backend)(operands, tangents) for backend in (None, "reference"))
    assert_close(actual, expected)
    assert np.isnan(actual).any() == (names != ("bias",)) and np.isfinite(actual).any()
