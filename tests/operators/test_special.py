"""Locations, weights and regions that are not finite, and which pixels are read, against the numpy references."""

import jax
import numpy as np
import pytest

from tests.helpers.aggregation.cases import CASES as AGGREGATIONS
from tests.helpers.deform_conv.cases import BACKENDS, Case, assert_close, cast
from tests.helpers.deform_conv.cases import CASES as CONVOLUTIONS
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.operators import OPERATORS, check, compiled_pull_back
from tests.helpers.sampling.cases import MODES, PADDING_MODES, Grid, Map

on_both = pytest.mark.parametrize("backend", BACKENDS)
MORE = {"torus": CONVOLUTIONS["circular"], "strided": CONVOLUTIONS["even_kernel_same_strided"]}
MORE |= {"few_samples": Case("few_samples", (9, 8), 4, 3, (1, 1), convolution=Convolution((3, 4)))}
MORE |= {name: AGGREGATIONS[name] for name in ("discrete", "sparse", "one_channel")}
MORE |= {f"map_{mode}": Map(mode=mode) for mode in MODES} | {"clipped": Grid(padding_mode="border")}
MORE |= {f"no_pixels_{mode}": Grid((0, 4), padding_mode=mode) for mode in PADDING_MODES}
CASES = {name: operator.case for name, operator in OPERATORS.items()} | MORE
WITH_LOCATIONS = [name for name, case in CASES.items() if not name.startswith(("roi", "ps_roi", "conv_on_grid"))]
POOLINGS = [name for name in OPERATORS if name.endswith(("pool", "align"))]


def spoiled(array, values):
    """`array` with some of its elements replaced."""
    array, random = array.copy(), np.random.default_rng(0)
    array.flat[random.choice(array.size, len(values), replace=False)] = values
    return array


@pytest.mark.parametrize("backend, dtype", [(None, "float64"), ("reference", "float64"), (None, "float32")])
@pytest.mark.parametrize(
    "values", [[np.nan] * 3, [np.inf, -np.inf, 3e38, -3e38, 2.0**31, -(2.0**63)]], ids=["nan", "huge"]
)
@pytest.mark.parametrize("name", WITH_LOCATIONS)
def test_locations_that_are_not_finite(name, values, backend, dtype, x64):
    """A NaN makes the results that use its sample NaN, and its gradients; an infinite location is outside."""
    if (name, dtype, values[0]) == ("torus", "float32", np.inf):
        pytest.skip("a huge location has lost its place among the pixels: tests/deform_conv/test_values.py")
    case = CASES[name]
    operands, cotangent = cast((case.operands(), case.cotangent()), dtype)
    field = "locations" if hasattr(operands, "locations") else "offset"
    operands = operands._replace(**{field: spoiled(getattr(operands, field), values)})
    check(case, backend, cotangent, operands, {"float64": 1e-10, "float32": 1e-4}[dtype])
    result, gradients = compiled_pull_back(case, backend)(cotangent, operands)
    assert np.isnan(result).any() == np.isnan(values[0]) and not np.isnan(result).all()
    assert np.isfinite(gradients[0]).all()


@on_both
@pytest.mark.parametrize("name", ["multi_scale_deformable_attention", "dcnv3"])
def test_a_nan_weight(name, backend, x64):
    """It multiplies the sample also where the sample reads nothing, though not its derivatives."""
    case = CASES[name]
    operands, cotangent = case.operands(), case.cotangent()
    locations, weights = operands.locations.copy(), operands.weights.copy()
    for tap, location in ((0, 0.5), (7, 1e6)):  # one that is inside, and one that is not
        locations.reshape(-1, 2)[tap], weights.flat[tap] = location, np.nan
    operands = operands._replace(locations=locations, weights=weights)
    result, gradients = compiled_pull_back(case, backend)(cotangent, operands)
    assert_close((result, gradients), case.expected(cotangent, operands))
    assert not np.isnan(gradients.weights).any()


@on_both
@pytest.mark.parametrize("name", POOLINGS)
def test_regions_that_are_padding_or_not_finite(name, backend, x64):
    """Padding is zero and reads nothing, and what is not finite is NaN."""
    case = CASES[name]
    operands, cotangent = case.operands(), case.cotangent()
    operands.rois[:] = [
        [-1, 1, 1, 5, 5],
        [0, 1, 1, np.inf, 5],
        [1, 1, np.nan, 5, 5],
        [2, np.inf, np.inf, np.inf, np.inf],
        [0.5, 1, 1, 5, 5],
        [np.nan, 1, 1, 5, 5],
    ]
    expected = case.expected(cotangent, operands)
    assert_close(compiled_pull_back(case, backend)(cotangent, operands), expected)
    pooled, _ = compiled_pull_back(case, backend)(cotangent, operands._replace(x=np.full_like(operands.x, np.nan)))
    padding = np.array([0, 3, 5])
    assert not np.any(pooled[padding]) and np.isnan(pooled[1:3]).all()
    operands.rois[:, 0] = -1
    assert not any(np.any(array) for array in jax.tree.leaves(compiled_pull_back(case, backend)(cotangent, operands)))


@on_both
@pytest.mark.parametrize("name", ["roi_align", "roi_max_align"])
def test_huge_regions(name, backend, x64):
    """Most of their points are outside the image; the largest ones end."""
    case = CASES[name]
    operands, cotangent = case.operands(), case.cotangent()
    operands.rois[:, 1:] = -60, -40, 70, 80
    check(case, backend, cotangent, operands, 1e-10)
    operands.rois[:, 1:] = -1e18, -1e300, 1e18, 1e300
    results = compiled_pull_back(case, backend)(cotangent, operands)
    assert all(np.isfinite(array).all() for array in jax.tree.leaves(results))


@on_both
@pytest.mark.parametrize("name", [*POOLINGS, "multi_scale_deformable_attention", "discrete", "sparse", "few_samples"])
def test_only_pixels_with_a_weight_are_read(name, backend, x64):
    """All others may be NaN."""
    case = CASES[name]
    operands, cotangent = case.operands(), case.cotangent()
    positive = jax.tree.map(np.abs, operands)
    if hasattr(operands, "rois"):
        operands.rois[:] = [0, 1.0, 1.0, 5.0, 4.0]  # points of an align on pixels
        operands.rois[::2] += [0, 1.5, 0.5, 2.5, 1.5]
        positive = operands
    else:  # whose weights are positive, which a cotangent of ones cannot cancel
        locations = {n: getattr(operands, n) for n in ("offset", "locations") if hasattr(operands, n)}
        positive = positive._replace(**locations)
    _, touched = compiled_pull_back(case, None)(np.ones_like(cotangent), positive)
    unread = np.asarray(touched[0]) == 0
    assert 0 < unread.sum() < unread.size
    field = operands._fields[0]
    results = [
        compiled_pull_back(case, backend)(cotangent, operands._replace(**{field: np.where(unread, other, operands[0])}))
        for other in (0, np.nan)
    ]
    assert_close(*results)
