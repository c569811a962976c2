"""Locations round as they are written: each product, quotient and sum on its own, as in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from tests.helpers.deform_conv.cases import BACKENDS

pytestmark = pytest.mark.optimized  # which may fuse a product with a sum
on_both = pytest.mark.parametrize("backend", BACKENDS)


@on_both
@pytest.mark.parametrize("size", [7, 25, 49])
def test_attention(size, backend):
    """A location that means a pixel may lie beside it."""
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


@on_both
@pytest.mark.parametrize("scale", [1.0, 1 / 16])
@pytest.mark.parametrize("bins", [3, 7])
def test_pooling(bins, scale, backend, x64):
    """Although bins may not divide."""
    width = 24
    row = np.random.default_rng(0).normal(size=width)
    x = np.tile(row, (3, 1))[None, ..., None]
    edges = [(first, first + size) for size in range(40) for first in range(12)]
    rois = np.array([[0, first, 0, last, 3 / scale - 1] for first, last in edges])
    start = rois[:, 1, None] * scale - 0.5
    size = np.maximum((rois[:, 3, None] + 1) * scale - 0.5 - start, 0.1)
    bin_ = size / bins
    position = (start + np.arange(bins) * bin_)[..., None] + np.arange(4) * (bin_ / 4)[..., None]
    kept = (position >= -0.5) & (position <= width - 0.5)
    position = position.clip(0, width - 1)
    slope = row[np.ceil(position).astype(int)] - row[np.floor(position).astype(int)]
    assert np.count_nonzero(position == np.floor(position)) > 1000
    expected = (slope * kept).sum(-1) / np.maximum(kept.sum(-1), 1) * 0.1 * size

    def total(offset):
        options = {"output_size": (1, bins), "part_size": (1, bins), "spatial_scale": scale, "backend": backend}
        return jax_dcn.deform_psroi_pool(x, rois, offset, sample_per_part=(1, 4), trans_std=0.1, **options).sum()

    gradient = jax.jit(jax.grad(total))(jnp.zeros((len(rois), 1, bins, 2)))
    np.testing.assert_allclose(gradient[:, 0, :, 0], expected, rtol=1e-9, atol=1e-12)
