"""The workspace stays small for every batch size, and parts of queries add up to the whole result."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from jax_dcn._operators import workspace
from tests.helpers.aggregation.cases import CASES
from tests.helpers.deform_conv.cases import assert_close
from tests.helpers.operators import pull_back
from tests.helpers.slow import slow

MIB = 2**20
LEVELS = ((64, 64), (32, 32), (16, 16), (8, 8))
PIXELS = sum(height * width for height, width in LEVELS)
SORTED = {"cpu": 0, "cuda": 256 * MIB}  # as docs/memory.md says


def shapes(batch, dtype):
    taps = (batch, PIXELS, 8, 4, 4)
    struct = jax.ShapeDtypeStruct
    return struct((batch, PIXELS, 8, 32), dtype), struct((*taps, 2), jnp.float32), struct(taps, jnp.float32)


def attend(*operands):
    return jax_dcn.multi_scale_deformable_attention(*operands, spatial_shapes=LEVELS)


def gradients(cotangent, *operands):
    return jax.vjp(attend, *operands)[1](cotangent)


def hessian_product(cotangent, *operands):
    return jax.jvp(functools.partial(gradients, cotangent), operands, operands)


def tangent(_, *operands):
    return jax.jvp(attend, operands, operands)


def temporary_bytes(function, batch, dtype="float32", sharding=None):
    arguments = jax.ShapeDtypeStruct((batch, PIXELS, 256), dtype), *shapes(batch, dtype)
    compiled = jax.jit(function).lower(*(struct.update(sharding=sharding) for struct in arguments)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.optimized
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients(dtype, platform):
    """On a GPU they need the samples of some heads, sorted."""
    for batch in (1, 16):
        assert temporary_bytes(gradients, batch, dtype) <= SORTED[platform] + MIB


@pytest.mark.optimized
@pytest.mark.parametrize("function", [tangent, slow(hessian_product)])
def test_other_derivatives_do_not_grow_with_the_batch(function, platform):
    sizes = {batch: temporary_bytes(function, batch) for batch in (2, 16)}
    assert sizes[16] <= sizes[2] + MIB, sizes
    assert sizes[16] <= 64 * MIB, sizes


@pytest.mark.parametrize("name, limit", [("attention", 1), ("dcnv3", 2**11)])
def test_parts_add_up(name, limit, monkeypatch, x64):
    """Queries one by one, and some rows of them, in derivatives of the reference."""
    monkeypatch.setattr(workspace, "REFERENCE_BYTES", limit)
    case = CASES[name]
    operands, directions, cotangent = case.operands(lead=(2,)), case.operands(1, lead=(2,)), case.cotangent(lead=(2,))

    def push(function):
        def gradients(operands):
            return pull_back(function, cotangent, operands)[1]

        return jax.jit(lambda: jax.jvp(gradients, (operands,), (directions,)))()

    assert_close(push(case.with_backend(None, deterministic=True)), push(case.with_backend("reference")))


@pytest.mark.platforms("cpu")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, slow(jnp.float32)])
def test_blocks_of_pixels_are_the_whole(dtype):
    """On a CPU, the cotangent of value is computed in blocks of pixels where its sums take too much memory."""
    sizes, channels = ((1024, 1024), (3, 5)), 16  # the sums of a head take 64 MiB
    random = np.random.default_rng(0)
    locations = random.uniform(-0.01, 1.01, (1, 300, 1, len(sizes), 4, 2)).astype(np.float32)
    weights = random.random(locations.shape[:-1], np.float32)
    cotangent = jnp.asarray(random.standard_normal((1, 300, channels)), dtype)
    value = jnp.zeros((1, 1024 * 1024 + 15, 1, channels), dtype)

    def d_value(backend):
        def attention(value):
            options = {"spatial_shapes": sizes, "backend": backend}
            return jax_dcn.multi_scale_deformable_attention(value, locations, weights, **options)

        return jax.jit(lambda: jax.vjp(attention, value)[1](cotangent)[0])()

    tolerance = 1e-2 if dtype == jnp.bfloat16 else 1e-5
    assert_close(d_value(None), d_value("reference"), tolerance, 1e-6)
