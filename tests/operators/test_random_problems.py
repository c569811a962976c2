"""Problems of any shape, options and types, against the numpy references."""

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.helpers.aggregation import cases as aggregation
from tests.helpers.deform_conv import cases as convolution
from tests.helpers.deform_conv.cases import assert_close
from tests.helpers.operators import pull_back
from tests.helpers.roi_pool import cases as pooling
from tests.helpers.sampling import cases as sampling

PROBLEMS = {
    "convolution": convolution.cases(),
    "pooling": pooling.aligns(),
    "aggregation": aggregation.cases(),
    "sampling": sampling.cases(),
}
TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}  # as a part of the largest value
POSITIONS = {"offset", "mask", "rois", "locations", "weights"}


def narrowed(operands, dtype):
    wide = "float64" if dtype == "float64" else "float32"
    types = {name: wide if name in POSITIONS else dtype for name in operands._fields}
    return operands._replace(
        **{name: None if a is None else jax.numpy.asarray(a, types[name]) for name, a in operands._asdict().items()}
    )


@pytest.mark.parametrize("count", [3, pytest.param(100, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("problems", PROBLEMS)
def test_random_problems(problems, count):
    @hypothesis.settings(max_examples=count)
    @hypothesis.given(PROBLEMS[problems], st.sampled_from(sorted(TOLERANCE)))
    def check(case, dtype):
        if dtype != "float64":  # where rounding does not decide whether a location is inside, or in which pixel
            hypothesis.assume(getattr(case, "on_grid", True))
        with jax.enable_x64(True):
            operands, cotangent = narrowed(case.operands(), dtype), jax.numpy.asarray(case.cotangent(), dtype)
            exact = jax.tree.map(lambda array: np.asarray(array, np.float64), (cotangent, operands))
            expected = jax.tree.leaves(case.expected(*exact))
            paths = [None, "reference"] if dtype == "float64" else [None]
            paths += ["im2col", *(["fused"] if dtype != "float64" else [])] * (problems == "convolution")
            for path in paths:
                try:
                    actual = jax.tree.leaves(pull_back(case.with_backend(path), cotangent, operands))
                except ValueError as error:
                    assert path == "fused" and "fused" in str(error)
                    continue
                for a, e in zip(actual, expected, strict=True):
                    largest = np.abs(e, where=np.isfinite(e), out=np.zeros(e.shape)).max(initial=0)
                    assert_close(a, e, 0, TOLERANCE[dtype] * max(1, largest))

    check()
