"""Channels in whole vectors of 16 bytes, which the CUDA kernels load at once, in float32 and 16 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.deform_conv.cases import Case, Operands, convolve
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.operators import check, narrowed

SAME = Convolution(padding="SAME")
CASES = [
    Case("ragged_packets", (9, 17), 32, 16, (3, 3), convolution=SAME),
    Case("many_channels", (4, 5), 144, 6, (2, 2), convolution=Convolution(padding="VALID")),
    Case("2_groups_3_offset_groups", (3, 5), 48, 36, (2, 3), 3, convolution=Convolution((2, 1), 1, (1, 2), 2)),
    Case("4_groups_2_offset_groups", (4, 3), 128, 32, (2, 2), 2, convolution=Convolution((1, 1), 1, (1, 1), 4)),
    Case("offset_groups_of_one_vector", (9, 8), 64, 16, (3, 3), 8, convolution=SAME),
    Case("torus", (3, 4), 64, 24, (3, 2), 2, convolution=Convolution((2, 1), "CIRCULAR", (3, 2))),
    Case("torus_of_one_column", (5, 1), 32, 8, (2, 3), convolution=Convolution(padding="CIRCULAR")),
    Case("no_channels", (4, 5), 0, 4, (3, 3), convolution=SAME),
    Case("empty_batch", (4, 5), 32, 8, (3, 3), batch=(0,), convolution=SAME),
    Case("empty_output", (2, 5), 32, 8, (3, 3), convolution=Convolution(padding="VALID")),
]
TOLERANCE = {"float32": 2.0**-19, "bfloat16": 2.0**-5, "float16": 2.0**-9}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", pytest.param("float16", marks=pytest.mark.slow)])
def test_values(case, dtype):
    check(case, "im2col", *narrowed(case, dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("case", [case for case in CASES if case.name in ("ragged_packets", "torus")], ids=str)
@pytest.mark.parametrize("values", [[np.nan], [np.inf, -np.inf]], ids=["nan", "inf"])
def test_nonfinite_offsets(values, case):
    random = np.random.default_rng(0)
    cotangent, operands = narrowed(case, "bfloat16")
    hit = random.uniform(size=operands.offset.shape) < 0.01
    assert hit.any()
    offset = np.where(hit, random.choice(values, hit.shape), operands.offset).astype("float32")
    check(case, "im2col", cotangent, operands._replace(offset=offset), TOLERANCE["bfloat16"])


@pytest.mark.parametrize("backend", [None, "im2col"])
def test_only_pixels_that_samples_touch_are_read(backend):
    """Samples on the border read one or two pixels, not those whose place the others' weights of zero would have."""
    x = jnp.full((1, 4, 4, 8), jnp.inf, jnp.bfloat16).at[0, 0, 0].set(1)
    at = {"corner": (-0.5, -0.5), "outside": (-1, 0), "far": (1e30, 0)}
    offset = jnp.asarray(list(at.values()), jnp.float32).reshape(1, 1, 3, 2) - jnp.asarray([[0, 0], [0, 1], [0, 2]])
    weight = jnp.ones((1, 1, 8, 2), jnp.bfloat16)
    options = {"padding": ((0, -3), (0, -1)), "backend": backend}
    y = jax.jit(lambda *a: convolve(Operands(*a), **options))(x, offset, weight)
    np.testing.assert_array_equal(y[0, 0, :, 0], [2, 0, 0])
