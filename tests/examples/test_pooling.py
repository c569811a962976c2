"""The max pooling of all detectors, beside that of Flax."""

import re
from collections import Counter

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from examples.library.pooling import max_pool
from tests.helpers.lowered import lowered_for

pytestmark = pytest.mark.platforms("cpu")
WINDOWS = [((2, 2), (1, 1)), ((3, 3), (2, 2), ((1, 1), (1, 1))), ((2, 3), (2, 1), ((0, 1), (2, 0)))]


def pull_back(pool, window, x):
    result, pullback = jax.vjp(lambda x: pool(x, *window), x)
    return result, pullback(1 + jnp.arange(result.size, dtype=result.dtype).reshape(result.shape))[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", WINDOWS)
def test_bits_are_those_of_flax(window, dtype):
    x = np.random.default_rng(0).integers(-2, 3, (2, 7, 8, 5))  # many pixels are equal
    x = jnp.asarray(x, dtype).at[1, 2, 2].set(-jnp.inf)
    for found, expected in zip(pull_back(max_pool, window, x), pull_back(nn.max_pool, window, x), strict=True):
        assert found.dtype == expected.dtype
        assert_array_equal(found, expected)
    x = x.at[0, 3, 3, 0].set(jnp.nan)
    assert_array_equal(*(np.float32(pool(x, *window)) for pool in (max_pool, nn.max_pool)))


@pytest.mark.parametrize("window", WINDOWS)
def test_programs_for_gpus_have_the_operations_of_flax(window):
    ours, theirs = (
        lowered_for("cuda", lambda x, pool=pool: pull_back(pool, window, x), jnp.ones((1, 8, 8, 2)))
        for pool in (max_pool, nn.max_pool)
    )
    counts = (Counter(re.findall(r"stablehlo\.(slice|select|select_and_scatter)\b", text)) for text in (ours, theirs))
    assert next(counts) == next(counts) and "select_and_scatter" in ours
