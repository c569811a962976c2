"""Derivatives at points that lie on pixels, where the last bit of a position decides."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn

WIDTH = 24


@pytest.mark.optimized  # which may fuse a product with a sum
@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("scale", [1.0, 1 / 16])
@pytest.mark.parametrize("bins", [3, 5, 7, 9])
def test_positions_round_as_they_are_written(bins, scale, backend, x64):
    """Every product, quotient and sum rounds on its own, in numpy as in the operator, though bins may not divide."""
    row = np.random.default_rng(0).normal(size=WIDTH)
    x = np.tile(row, (3, 1))[None, ..., None]
    edges = [(first, first + size) for size in range(40) for first in range(12)]
    rois = np.array([[0, first, 0, last, 3 / scale - 1] for first, last in edges])
    start = rois[:, 1, None] * scale - 0.5
    size = np.maximum((rois[:, 3, None] + 1) * scale - 0.5 - start, 0.1)
    bin_ = size / bins
    position = (start + np.arange(bins) * bin_)[..., None] + np.arange(4) * (bin_ / 4)[..., None]
    kept = (position >= -0.5) & (position <= WIDTH - 0.5)
    position = position.clip(0, WIDTH - 1)
    slope = row[np.ceil(position).astype(int)] - row[np.floor(position).astype(int)]
    assert np.count_nonzero(position == np.floor(position)) > 1000
    expected = (slope * kept).sum(-1) / np.maximum(kept.sum(-1), 1) * 0.1 * size

    def total(offset):
        options = {"output_size": (1, bins), "part_size": (1, bins), "spatial_scale": scale, "backend": backend}
        return jax_dcn.deform_psroi_pool(x, rois, offset, sample_per_part=(1, 4), trans_std=0.1, **options).sum()

    gradient = jax.jit(jax.grad(total))(jnp.zeros((len(rois), 1, bins, 2)))
    np.testing.assert_allclose(gradient[:, 0, :, 0], expected, rtol=1e-9, atol=1e-12)
