"""Non-differentiable points, and the rounding of locations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from tests.helpers.deform_conv.cases import BACKENDS

on_both = pytest.mark.parametrize("backend", BACKENDS)


@on_both
def test_non_differentiable_points(backend, x64):
    """The derivative is right-hand on a pixel, and zero at -1 and at the size."""
    row = np.array([1.0, 3.0, 6.0, 10.0])[:, None, None]
    cases = [  # pixel, value, slope
        (-1.0, 0, 0),  # outside
        (-0.5, 0.5, 1),
        (0.0, 1, 2),  # right-hand
        (1.0, 3, 3),
        (1.5, 4.5, 3),
        (3.0, 10, -10),
        (3.5, 5, -10),
        (4.0, 0, 0),  # outside
    ]
    pixel, value, slope = np.array(cases).T
    ones = np.ones(len(cases))

    def attend(x):
        locations = jnp.stack([x, ones / 2], -1)[:, None, None, None]
        weights = ones[:, None, None, None]
        options = {"spatial_shapes": [(1, 4)], "backend": backend}
        return jax_dcn.multi_scale_deformable_attention(row, locations, weights, **options)[:, 0]

    def convolve(x):
        image, mask = np.tile(row[None, :, :, 0], (len(cases), 1, 1, 1)), np.ones((len(cases), 1, 4, 1))
        offset = jnp.zeros((len(cases), 1, 4, 2)).at[:, 0, 2, 0].set(x - 2)
        options = {"kernel_size": 1, "padding": 0, "groups": 1, "backend": backend}
        return jax_dcn.dcnv3(image, offset, mask, **options)[:, 0, 2, 0]

    for function, x, scale in ((attend, (pixel + 0.5) / 4, 4), (convolve, pixel, 1)):
        result, pull_back = jax.vjp(jax.jit(function), x)
        np.testing.assert_array_equal(result, value)
        np.testing.assert_array_equal(pull_back(ones)[0], scale * slope)


@pytest.mark.optimized  # which may fuse a product with a sum
@on_both
@pytest.mark.parametrize("size", [7, 25, 49])
def test_locations_round_as_they_are_written(size, backend):
    """The product and the sum round on their own, as in numpy: a location that means a pixel may lie beside it."""
    row = np.random.default_rng(0).normal(size=size).astype(np.float32)
    pixels = np.arange(size - 1, dtype=np.float32)
    locations = np.concatenate([(pixels + np.float32(0.5)) / np.float32(size), (pixels * 2 + 1) / np.float32(2 * size)])
    position = locations * np.float32(size) - np.float32(0.5)
    low = np.floor(position).astype(int)
    padded = np.concatenate([[0], row, [0]])
    expected = (padded[low + 2] - padded[low + 1]) * np.float32(size)
    assert (position != np.round(position)).any() or size == 7

    def total(x):
        locations = jnp.stack([x, jnp.full_like(x, 0.5)], -1)[:, None, None, None]
        keywords = {"spatial_shapes": [(1, size)], "backend": backend}
        weights = np.ones((len(x), 1, 1, 1), np.float32)
        return jax_dcn.multi_scale_deformable_attention(row[:, None, None], locations, weights, **keywords).sum()

    np.testing.assert_allclose(jax.jit(jax.grad(total))(locations), expected, rtol=1e-5, atol=1e-5)
