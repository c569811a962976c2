"""The workspace stays small for every batch size, and chunks of queries add up to the whole result."""

import jax
import jax.numpy as jnp
import pytest

import jax_dcn
from jax_dcn._operators.aggregation import workspace
from tests.helpers.deform_aggregation.cases import CASES, pull_back
from tests.helpers.deform_conv.cases import assert_close

MIB = 2**20
LEVELS = ((64, 64), (32, 32), (16, 16), (8, 8))
PIXELS = sum(height * width for height, width in LEVELS)
SORTED = {"cpu": 0, "cuda": 256 * MIB}  # as docs/memory.md says


def shapes(batch, dtype="float32"):
    taps = (batch, PIXELS, 8, 4, 4)
    struct = jax.ShapeDtypeStruct
    return struct((batch, PIXELS, 8, 32), dtype), struct((*taps, 2), jnp.float32), struct(taps, jnp.float32)


def attend(*operands):
    return jax_dcn.multi_scale_deformable_attention(*operands, spatial_shapes=LEVELS)


def gradients(*operands):
    return jax.grad(lambda *operands: attend(*operands).astype(jnp.float32).sum(), (0, 1, 2))(*operands)


def hessian_product(*operands):
    return jax.jvp(gradients, operands, operands)


def tangent(*operands):
    return jax.jvp(attend, operands, operands)


def temporary_bytes(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.optimized
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients(dtype, platform):
    """They need the cotangent of the result, and on a GPU the samples of some heads, sorted."""
    for batch in (1, 16):
        cotangent = batch * PIXELS * 256 * jnp.dtype(dtype).itemsize
        assert temporary_bytes(gradients, *shapes(batch, dtype)) <= cotangent + SORTED[platform] + 4 * MIB


@pytest.mark.optimized
@pytest.mark.parametrize("function", [tangent, hessian_product])
def test_other_derivatives_do_not_grow_with_the_batch(function, platform):
    """Besides cotangents, which jax itself makes of the results."""
    sizes = {batch: temporary_bytes(function, *shapes(batch)) for batch in (2, 16)}
    cotangents = {batch: (2 if function is hessian_product else 0) * batch * PIXELS * 256 * 4 for batch in sizes}
    assert all(sizes[batch] <= cotangents[batch] + 256 * MIB for batch in sizes), sizes


@pytest.mark.parametrize("name", ["attention", "dcnv3"])
@pytest.mark.parametrize("limit", [1, 2**11])
def test_chunks_add_up(name, limit, monkeypatch, x64):
    """Queries one by one, and some rows of them, in derivatives of the reference."""
    monkeypatch.setattr(workspace, "REFERENCE_BYTES", limit)
    case = CASES[name]
    operands, directions, cotangent = case.operands(lead=(2,)), case.operands(1, lead=(2,)), case.cotangent(lead=(2,))

    def push(function):
        return jax.jit(
            lambda: jax.jvp(lambda operands: pull_back(cotangent, operands, function)[1], (operands,), (directions,))
        )()

    assert_close(push(case.with_backend(None, deterministic=True)), push(case.with_backend("reference")))
