"""Regions and offsets that are padding, outside, empty or not finite; points on kinks; which pixels are read."""

import numpy as np
import pytest

from tests.helpers.deform_conv.cases import assert_close
from tests.helpers.roi_pool.cases import BACKENDS, COTANGENT, operands, pull_back
from tests.helpers.roi_pool.numpy_reference import Pooling

on_both = pytest.mark.parametrize("backend", BACKENDS)


@on_both
def test_padding_anywhere_is_zero_and_reads_nothing(backend, x64):
    x, rois, offset = operands()
    padding = np.array([0, 3, 5])
    rois[:, 0] = [-0.5, 0, 1, 2, 0.5, np.nan]
    offset[0], rois[3, 1:] = np.nan, np.inf
    pooled, _, d_offset = pull_back(COTANGENT, np.full_like(x, np.nan), rois, offset, backend=backend)
    for result in (pooled, d_offset):
        np.testing.assert_array_equal(result[padding], np.zeros_like(result[padding]))
        assert np.isnan(result).any()
    _, d_x, _ = pull_back(COTANGENT, x, rois, offset, backend=backend)
    kept = np.array([1, 2, 4])
    assert_close(d_x, pull_back(COTANGENT[kept], x, rois[kept], offset[kept], backend=backend)[1])


@on_both
def test_all_padding(backend):
    x, rois, offset = map(np.float32, operands())
    rois[:, 0] = -1
    for result in pull_back(np.float32(COTANGENT), np.full_like(x, np.nan), rois, offset, backend=backend):
        assert not result.any()


@on_both
def test_regions_that_are_not_finite(backend, x64):
    x, rois, offset = operands()
    rois[:, 0] = [0, 1, 0, 0, 1, 0]
    rois[2, 3], rois[3, 2] = np.nan, np.inf
    offset[2] = np.nan
    pooled, d_x, d_offset = pull_back(COTANGENT, x, rois, offset, backend=backend)
    bad, good = np.array([2, 3]), np.array([0, 1, 4, 5])
    assert np.isnan(pooled[bad]).all()
    assert not d_offset[bad].any()
    assert_close((pooled[good], d_x, d_offset[good]), pull_back(COTANGENT[good], x, rois[good], offset[good]))


@on_both
def test_offsets_that_are_not_finite(backend):
    x, rois, offset = map(np.float32, operands())
    rois[0] = 0, 2, 2, 12, 12
    offset[0, 0, 0] = np.nan, 0, np.inf, 0, 0, np.nan
    pooled, d_x, d_offset = pull_back(np.float32(COTANGENT), x, rois, offset, backend=backend)
    by_class = pooled[0, 0, 0].reshape(3, 2)
    assert np.isnan(by_class[::2]).all()
    assert not by_class[1].any()
    assert np.isfinite(pooled[0, 0, 2:]).all()  # the next part
    assert np.isnan(d_offset[0, 0, 0].reshape(3, 2)[::2]).all()
    assert not d_offset[0, 0, 0, 2:4].any()
    assert np.isfinite(d_x).all()


@on_both
def test_only_pixels_with_a_weight_are_read(backend, x64):
    """All others may be NaN."""
    x, rois, offset = operands()
    touched = pull_back(np.ones_like(COTANGENT), x, rois, offset, backend=backend)[1] != 0
    assert 0 < touched.sum() < touched.size
    results, with_nan = (
        pull_back(COTANGENT, np.where(touched, x, other), rois, offset, backend=backend) for other in (0, np.nan)
    )
    for result, same in zip(results, with_nan, strict=True):
        assert_close(result, same)


def test_an_infinite_cotangent_reaches_what_its_bin_reads(x64):
    x, rois, offset = operands()
    one, infinity = np.zeros_like(COTANGENT), np.zeros_like(COTANGENT)
    one[0, 1, 1], infinity[0, 1, 1] = 1, np.inf
    reached, infinite = (pull_back(cotangent, x, rois, offset)[1] for cotangent in (one, infinity))
    np.testing.assert_array_equal(infinite, np.where(np.asarray(reached) > 0, np.inf, 0))


@on_both
@pytest.mark.parametrize(
    "shift, value, slope",
    [
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
    ],
)
def test_kinks(shift, value, slope, backend, x64):
    """A region of four pixels and one point, at 0.5 and moving by four pixels an offset of 1."""
    x = np.cumsum(np.arange(1.0, 9.0))[None, None, :, None]
    pooling = Pooling((1, 1), sample_per_part=(1, 1), trans_std=1.0)
    offset = np.array([[[[shift, 0.0]]]])
    cotangent = np.ones((1, 1, 1, 1))
    pooled, _, d_offset = pull_back(cotangent, x, np.array([[0, 1, 0, 4, 0]]), offset, pooling=pooling, backend=backend)
    assert (pooled.item(), d_offset[0, 0, 0].tolist()) == (value, [slope, 0])
