"""On a CPU, value's cotangent is computed in blocks of pixels where its sums would take too much memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn

pytestmark = pytest.mark.platforms("cpu")

SHAPES = ((1024, 1024), (3, 5))  # the sums of a head take 64 MiB
CHANNELS, QUERIES = 16, 300


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_blocks_of_pixels_are_the_whole(dtype):
    random = np.random.default_rng(0)
    pixels = sum(height * width for height, width in SHAPES)
    locations = random.uniform(-0.01, 1.01, (1, QUERIES, 1, len(SHAPES), 4, 2)).astype(np.float32)
    weights = random.random(locations.shape[:-1], np.float32)
    cotangent = jnp.asarray(random.standard_normal((1, QUERIES, CHANNELS)), dtype)

    def d_value(backend):
        def attention(value):
            return jax_dcn.multi_scale_deformable_attention(
                value, locations, weights, spatial_shapes=SHAPES, backend=backend
            )

        return jax.vjp(attention, jnp.zeros((1, pixels, 1, CHANNELS), dtype))[1](cotangent)[0]

    np.testing.assert_allclose(
        d_value(None).astype(np.float32),
        d_value("reference").astype(np.float32),
        rtol=1e-2 if dtype == jnp.bfloat16 else 1e-5,
        atol=1e-6,
    )


def test_many_taps_exceed_what_is_located_at_a_time():
    random = np.random.default_rng(0)
    locations = random.uniform(-0.1, 1.1, (1, 5, 3, 1, 300, 2)).astype(np.float32)
    weights = random.random(locations.shape[:-1], np.float32)
    value = random.standard_normal((1, 42, 3, 11)).astype(np.float32)

    def differentiate(backend):
        def attention(*operands):
            return jax_dcn.multi_scale_deformable_attention(*operands, spatial_shapes=((6, 7),), backend=backend)

        out, pull_back = jax.vjp(attention, value, locations, weights)
        return out, *pull_back(jnp.ones_like(out))

    for actual, expected in zip(differentiate(None), differentiate("reference"), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
