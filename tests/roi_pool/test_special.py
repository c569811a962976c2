"""An infinite cotangent, non-differentiable points, and the rounding of locations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from tests.helpers.deform_conv.cases import BACKENDS
from tests.helpers.roi_pool.cases import COTANGENT, operands, pull_back
from tests.helpers.roi_pool.numpy_reference import Pooling


def test_an_infinite_cotangent_reaches_what_its_bin_reads(x64):
    x, rois, offset = operands()
    one, infinity = np.zeros_like(COTANGENT), np.zeros_like(COTANGENT)
    one[0, 1, 1], infinity[0, 1, 1] = 1, np.inf
    reached, infinite = (pull_back(cotangent, x, rois, offset)[1] for cotangent in (one, infinity))
    np.testing.assert_array_equal(infinite, np.where(np.asarray(reached) > 0, np.inf, 0))


def test_the_last_column_of_a_wide_image():
    """It has more columns than float32 has consecutive integers."""
    width = 2**24 + 4
    x, rois = jnp.zeros((1, 1, width, 1)).at[0, 0, -1].set(3), jnp.array([[0.0, width, 0, width, 0]])
    np.testing.assert_array_equal(jax_dcn.psroi_pool(x, rois, output_size=1), 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_non_differentiable_points(backend, x64):
    """Regions of four pixels and one point, at 0.5 and moving by four pixels an offset of 1."""
    x = np.cumsum(np.arange(1.0, 9.0))[None, None, :, None]
    pooling = Pooling((1, 1), sample_per_part=(1, 1), trans_std=1.0)
    cases = [  # shift, value, slope
        (0.0, 2, 8),  # at 0.5, between 1 and 3
        (0.125, 3, 0),  # on a pixel
        (-0.125, 1, 0),  # on the first pixel
        (-0.2, 1, 0),  # clamped to it
        (-0.25, 1, 0),  # at -0.5: kept
        (-0.26, 0, 0),  # left out
        (1.5, 32, 32),  # at 6.5
        (1.625, 36, 0),
        (1.75, 36, 0),  # at 7.5: kept
        (1.76, 0, 0),
    ]
    shift, value, slope = np.array(cases).T
    rois = np.tile([0.0, 1.0, 0.0, 4.0, 0.0], (len(cases), 1))
    offset = np.stack([shift, 0 * shift], -1)[:, None, None]
    given = np.ones((len(cases), 1, 1, 1)), x, rois, offset
    pooled, _, d_offset = pull_back(*given, pooling=pooling, backend=backend)
    np.testing.assert_array_equal(pooled.ravel(), value)
    np.testing.assert_array_equal(d_offset[:, 0, 0], np.stack([slope, 0 * slope], -1))


@pytest.mark.optimized  # which may fuse a product with a sum
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [1.0, 1 / 16])
@pytest.mark.parametrize("bins", [3, 7])
def test_locations_round_as_they_are_written(bins, scale, backend, x64):
    """Every product, quotient and sum rounds on its own, in numpy as in the operator, though bins may not divide."""
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
