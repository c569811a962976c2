"""The layers of the detection transformers, beside those of Flax."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from examples.detr.layers import LayerNorm

pytestmark = pytest.mark.platforms("cpu")


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
@pytest.mark.parametrize("data", [jnp.float32, jnp.bfloat16])
def test_a_layer_normalisation_is_that_of_flax(dtype, data):
    x = jnp.asarray(3 + 2 * np.random.default_rng(0).normal(size=(2, 7, 16)), data)
    layers = LayerNorm(1e-5, dtype), nn.LayerNorm(1e-5, use_fast_variance=False, dtype=dtype)
    first, expected = (layer.init(jax.random.key(0), x) for layer in layers)
    assert jax.tree.all(jax.tree.map(np.array_equal, first, expected))
    variables = jax.tree.map(lambda leaf: leaf + jnp.arange(16) / 8, first)
    results, pullbacks = zip(*(jax.vjp(layer.apply, variables, x) for layer in layers), strict=True)
    cotangent = jnp.cos(jnp.arange(x.size)).reshape(x.shape).astype(results[1].dtype)
    ours, theirs = ([y, *jax.tree.leaves(pull(cotangent))] for y, pull in zip(results, pullbacks, strict=True))
    for found, expected in zip(ours, theirs, strict=True):
        assert found.dtype == expected.dtype
        rounding = 2.0**-7 if found.dtype == jnp.bfloat16 else 2.0**-20
        assert_allclose(*map(np.float32, (found, expected)), 0, rounding * np.abs(np.float32(expected)).max())
