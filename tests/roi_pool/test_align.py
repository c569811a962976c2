"""RoIAlign, its position-sensitive and its deformable form: values, gradients, non-differentiable points."""

import numpy as np
import pytest

from tests.helpers.deform_conv.cases import BACKENDS, assert_close
from tests.helpers.roi_pool import numpy_reference
from tests.helpers.roi_pool.cases import RoIAlign, pull_back
from tests.helpers.roi_pool.numpy_reference import Align


def problem(align, count):
    """(cotangent, x, rois, offset)"""
    case = RoIAlign(align, count=count)
    return case.cotangent(0), *case.operands()


def check(align, backend, *given):
    cotangent, *operands = given
    expected = numpy_reference.pool(*operands, cotangent, align)
    assert_close(pull_back(*given, pooling=align, backend=backend), expected)


@pytest.mark.parametrize(
    "ratio, aligned, backend", [((2, 3), True, None), ((2, 3), True, "reference"), ((0, 2), False, None)]
)
def test_max(ratio, aligned, backend, x64):
    align = Align(sampling_ratio=ratio, spatial_scale=0.4, aligned=aligned, mode="max")
    check(align, backend, *problem(align, count=12))


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_huge_regions(backend, mode, x64):
    """Most of their points are outside the image; the largest ones end."""
    align = Align(mode=mode)
    cotangent, x, rois, _ = problem(align, count=2)
    rois[:, 1:] = -60, -40, 70, 80
    check(align, backend, cotangent, x, rois, None)
    rois[:, 1:] = -1e18, -1e300, 1e18, 1e300
    pooled, d_x, _ = pull_back(cotangent, x, rois, None, pooling=align, backend=backend)
    assert np.isfinite(pooled).all() and np.isfinite(d_x).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_non_differentiable_points(backend, x64):
    """One point of a region of four pixels, which an offset moves: the slope on a pixel is that after it."""
    x = np.cumsum(np.arange(1.0, 9.0))[None, None, :, None]
    align = Align((1, 1), sampling_ratio=(1, 1), gamma=1.0)
    cases = [  # position, value, slope
        (1.5, 4.5, 3),
        (2, 6, 4),
        (0, 1, 2),
        (-0.25, 1, 0),  # clamped
        (-1, 1, 0),
        (-1.25, 0, 0),
        (6.75, 34, 8),
        (7, 36, 0),
        (8, 36, 0),
        (8.25, 0, 0),
    ]
    position, value, slope = np.array(cases).T
    rois = np.tile([0.0, 1.0, 0.5, 5.0, 0.5], (len(cases), 1))  # the middle is at 2.5
    offset = np.stack([(position - 2.5) / 4, 0 * position], -1)[:, None, None]
    given = np.ones((len(cases), 1, 1, 1)), x, rois, offset
    pooled, _, d_offset = pull_back(*given, pooling=align, backend=backend)
    assert_close((pooled[:, 0, 0, 0], d_offset[:, 0, 0, 0]), (value, 4 * slope))


def test_the_first_of_equal_points_and_nan_win(x64):
    align = Align((1, 1), sampling_ratio=(2, 2), mode="max")
    x, rois = np.ones((1, 4, 4, 1)), np.array([[0, 0.5, 0.5, 4.5, 4.5]])  # points at 1 and 3
    for backend in BACKENDS:
        _, d_x, _ = pull_back(np.ones((1, 1, 1, 1)), x, rois, None, pooling=align, backend=backend)
        assert np.argwhere(d_x).tolist() == [[0, 1, 1, 0]]
        last_is_nan = x.copy()
        last_is_nan[0, 3, 3] = np.nan
        pooled, *_ = pull_back(np.ones((1, 1, 1, 1)), last_is_nan, rois, None, pooling=align, backend=backend)
        assert np.isnan(pooled).all()
    # mmcv's maximum starts at -10000.
    assert pull_back(np.ones((1, 1, 1, 1)), -2e4 * x, rois, None, pooling=align)[0].item() == -2e4
