"""Layers of the detectors, beside those of Flax."""

import itertools
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose, assert_array_equal

from examples.detr import attention
from examples.detr.attention import SelfAttention, attend_at_once, attend_in_blocks
from examples.detr.layers import LayerNorm, LayerOptions
from examples.library.layers import BatchNorm, Conv, max_pool, sums_apart, sums_together
from tests.helpers.slow import slow

pytestmark = pytest.mark.platforms("cpu")

CONVOLUTIONS = [
    {"kernel_size": (3, 3), "padding": 1, "strides": 2},
    {"kernel_size": (1, 1), "use_bias": False, "dtype": jnp.bfloat16},
    {"kernel_size": (5, 5), "feature_group_count": 16, "padding": "VALID"},
    {"kernel_size": (3, 3), "padding": "CIRCULAR", "kernel_dilation": 2},
]
PAIRS = [
    *((Conv(32, **options), nn.Conv(32, **options), jnp.float32) for options in CONVOLUTIONS),
    *(
        (LayerNorm(1e-5, dtype), nn.LayerNorm(1e-5, use_fast_variance=False, dtype=dtype), data)
        for dtype, data in itertools.product([None, jnp.bfloat16], [jnp.float32, jnp.bfloat16])
    ),
    *(
        (BatchNorm(*form), nn.BatchNorm(*form[:1], -1, *form[1:], use_fast_variance=False), data)
        for form, data in [
            ((False, 0.8, 1e-3, None), jnp.float32),
            ((False, 0.9, 1e-5, jnp.bfloat16), jnp.bfloat16),
            ((True, 0.9, 1e-5, None), jnp.bfloat16),
        ]
    ),
]


@pytest.mark.parametrize("ours, theirs, data", PAIRS)
def test_parameters_results_and_gradients(ours, theirs, data):
    x = jnp.asarray(3 + 2 * np.random.default_rng(0).normal(size=(2, 9, 8, 16)), data)
    first, expected = (layer.init(jax.random.key(0), x) for layer in (ours, theirs))
    assert jax.tree.all(jax.tree.map(np.array_equal, first, expected))
    variables = jax.tree.map(lambda leaf: leaf + jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), first)
    applied = [partial(layer.apply, mutable=["batch_stats"]) for layer in (ours, theirs)]
    results, pullbacks, kept = zip(*(jax.vjp(apply, variables, x, has_aux=True) for apply in applied), strict=True)
    cotangent = jnp.cos(jnp.arange(results[1].size)).reshape(results[1].shape).astype(results[1].dtype)
    found, expected = (
        [y, *jax.tree.leaves((statistics, pull(cotangent)))]
        for y, pull, statistics in zip(results, pullbacks, kept, strict=True)
    )
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        is_coarse = jnp.bfloat16 in (one.dtype, isinstance(ours, Conv) and ours.dtype)
        rounding = 2.0**-7 if is_coarse else 2.0**-18
        assert_allclose(*map(np.float32, (one, other)), 0, rounding * np.abs(np.float32(other)).max())


def test_sums_in_one_reduction():
    """As on a GPU, of an array that two devices share, too."""
    arrays = np.random.default_rng(0).normal(size=(2, 4, 3, 5, 8)).astype(np.float32)
    expected = jax.jit(sums_apart)(*arrays)
    shared = jax.device_put(arrays, NamedSharding(jax.make_mesh((2,), ("a",), (AxisType.Auto,)), P(None, "a")))
    for given in (arrays, shared):
        for found, one in zip(jax.jit(sums_together)(*given), expected, strict=True):
            assert_allclose(found, one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_hidden", [False, True])
def test_attention_of_an_odd_length_in_16_bits(is_hidden):
    """It has further rows, which nobody sees."""
    x, position = np.random.default_rng(0).normal(size=(2, 2, 5, 16)).astype(np.float32)
    hidden = np.triu(np.ones((5, 5), bool), 1) if is_hidden else None
    wide, narrow = (SelfAttention(2, LayerOptions(dtype=dtype)) for dtype in (None, jnp.bfloat16))
    variables = jax.tree.map(lambda leaf: leaf + 0.1, wide.init(jax.random.key(0), x))
    found, expected = (layer.apply(variables, x, position[0], hidden) for layer in (narrow, wide))
    assert_allclose(found.astype(np.float32), expected, 0, 0.02 * np.abs(expected).max())


@pytest.mark.parametrize("is_hidden", [False, True])
def test_attention_in_blocks(is_hidden, monkeypatch, x64):
    """Of queries whose number the blocks do not divide; a query that sees nothing attends to all equally."""
    monkeypatch.setattr(attention, "BLOCK", 2 * 7 * 3)
    random = np.random.default_rng(0)
    *operands, weights = random.normal(size=(4, 2, 3, 7, 2, 4))
    hidden = random.random((7, 7)) < np.linspace(0, 1, 7)[:, None] if is_hidden else None

    def everything(attend):
        def loss(*operands):
            found = attend(*operands, hidden)
            return jnp.sum(weights * found), found

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*operands)

    for ours, theirs in zip(*map(jax.tree.leaves, map(everything, (attend_in_blocks, attend_at_once))), strict=True):
        assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


def test_an_input_that_is_spread_is_refused():
    with pytest.raises(ValueError, match=r"input_dilation must be 1, got \(2, 2\)"):
        Conv(4, (3, 3), input_dilation=2).init(jax.random.key(0), jnp.ones((1, 4, 4, 2)))


WINDOWS = [((2, 2), (1, 1)), ((3, 3), (2, 2), ((1, 1), (1, 1))), ((2, 3), (2, 1), ((0, 1), (2, 0)))]


def pull_back(pool, window, x):
    result, pullback = jax.vjp(lambda x: pool(x, *window), x)
    return result, pullback((1 + jnp.arange(result.size) % 29).reshape(result.shape).astype(result.dtype))[0]


@pytest.mark.parametrize("dtype", ["float32", slow("bfloat16")])
@pytest.mark.parametrize("window", WINDOWS)
def test_bits_of_a_pooling(window, dtype):
    x = np.random.default_rng(0).integers(-2, 3, (2, 7, 8, 5))  # many pixels are equal
    x = jnp.asarray(x, dtype).at[1, 2, 2].set(-jnp.inf)
    for found, expected in zip(pull_back(max_pool, window, x), pull_back(nn.max_pool, window, x), strict=True):
        assert found.dtype == expected.dtype
        assert_array_equal(found, expected)
    x = x.at[0, 3, 3, 0].set(jnp.nan)
    assert_array_equal(*(np.float32(pool(x, *window)) for pool in (max_pool, nn.max_pool)))
