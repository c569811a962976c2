"""Locations and weights that are not finite, kinks, which pixels are read, and the rounding of positions."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from tests.helpers.deform_aggregation.cases import BACKENDS, CASES, Attention, Operands, pull_back
from tests.helpers.deform_conv.cases import assert_close

on_both = pytest.mark.parametrize("backend", BACKENDS)
BILINEAR = pytest.mark.parametrize("name", ["attention", "dcnv3"])


def num_queries(case):
    return case.queries if isinstance(case, Attention) else math.prod(case.output_size)


def locations_of(case, operands):
    """A view [queries, heads, taps, 2] of the locations of `operands`, or of their gradient."""
    return np.asarray(operands.locations).reshape(*weights_of(case, operands).shape, 2)


def weights_of(case, operands):
    """A view [queries, heads, taps] of the weights of `operands`, or of their gradient."""
    heads = case.heads if isinstance(case, Attention) else case.groups
    return np.asarray(operands.weights).reshape(num_queries(case), heads, -1)


def by_head(case, result):
    return np.asarray(result).reshape(num_queries(case), -1, case.channels)


@on_both
@pytest.mark.parametrize("coordinate", [0, 1])
@BILINEAR
def test_a_nan_location(name, coordinate, backend):
    """It makes the results that use it NaN, and its gradients, and adds nothing to the gradient of value."""
    case = CASES[name]
    operands, cotangent = Operands(*map(np.float32, case.operands())), np.float32(case.cotangent())
    locations_of(case, operands)[2, 1, 3, coordinate] = np.nan
    result, gradients = pull_back(cotangent, operands, case.with_backend(backend))
    nan = np.isnan(by_head(case, result))
    assert nan[2, 1].all()
    assert nan.sum() == case.channels
    in_locations, in_weights = np.isnan(locations_of(case, gradients)), np.isnan(weights_of(case, gradients))
    assert in_locations[2, 1, 3].all() and in_locations.sum() == 2
    assert in_weights[2, 1, 3] and in_weights.sum() == 1
    without = operands._replace(locations=operands.locations.copy(), weights=operands.weights.copy())
    locations_of(case, without)[2, 1, 3] = 0
    weights_of(case, without)[2, 1, 3] = 0
    assert_close(gradients.value, pull_back(cotangent, without, case.with_backend(backend))[1].value, 1e-6, 1e-6)


@on_both
@pytest.mark.parametrize("infinity", [np.inf, -np.inf, 3e38, -3e38])
@BILINEAR
def test_an_infinite_location_is_outside(name, infinity, backend):
    case = CASES[name]
    operands, cotangent = Operands(*map(np.float32, case.operands())), np.float32(case.cotangent())
    locations_of(case, operands)[2, 1, 3, 0] = infinity
    without = operands._replace(weights=operands.weights.copy())
    weights_of(case, without)[2, 1, 3] = 0
    result, gradients = pull_back(cotangent, operands, case.with_backend(backend))
    expected, without_gradients = pull_back(cotangent, without, case.with_backend(backend))
    assert_close((result, gradients.value), (expected, without_gradients.value), 1e-6, 1e-6)
    assert not locations_of(case, gradients)[2, 1, 3].any()
    assert not weights_of(case, gradients)[2, 1, 3].any()


@on_both
def test_discrete_locations_that_are_not_finite(backend):
    """NaN gives NaN. Infinite ones read the border, as all that are outside."""
    columns = jnp.arange(4.0, dtype=jnp.float32)[:, None, None]
    locations = np.float32([[np.nan, 0.1], [0.1, np.nan], [np.inf, 0.1], [-np.inf, 0.1], [2, -np.inf]])

    def of(value, locations, weights):
        keywords = {"spatial_shapes": [(1, 4)], "method": "discrete", "backend": backend}
        return jax_dcn.multi_scale_deformable_attention(
            value, locations[:, None, None, None], weights[:, None, None, None], **keywords
        )

    weights = np.ones(5, np.float32)
    result, gradients = pull_back(np.ones((5, 1), np.float32), Operands(columns, locations, weights), of)
    np.testing.assert_array_equal(result[:, 0], [np.nan, np.nan, 3, 0, 3])
    np.testing.assert_array_equal(gradients.weights, [np.nan, np.nan, 3, 0, 3])
    np.testing.assert_array_equal(gradients.value[:, 0, 0], [1, 0, 0, 2])
    assert not np.any(gradients.locations)


@on_both
@pytest.mark.parametrize("inside", [True, False])
@BILINEAR
def test_a_nan_weight(name, inside, backend):
    """It multiplies the sample also where the sample reads nothing, though not its derivatives."""
    case = CASES[name]
    operands = Operands(*map(np.float32, case.operands()))
    locations_of(case, operands)[2, 1, 3] = (0.5, 0.5) if inside else (1e6, 0.5)
    weights_of(case, operands)[2, 1, 3] = np.nan
    result, gradients = pull_back(np.float32(case.cotangent()), operands, case.with_backend(backend))
    nan = np.isnan(by_head(case, result))
    assert nan[2, 1].all()
    assert nan.sum() == case.channels
    # A sample that reads nothing has no gradients.
    in_locations = np.isnan(locations_of(case, gradients))
    assert in_locations[2, 1, 3].all() == inside and in_locations.sum() == 2 * inside
    assert np.isnan(gradients.value).any() == inside
    assert not np.isnan(gradients.weights).any()


@on_both
@pytest.mark.parametrize("name", ["attention", "discrete", "sparse"])
def test_only_pixels_with_a_weight_are_read(name, backend, x64):
    """All others may be NaN."""
    case = CASES[name]
    operands, cotangent = case.operands(), case.cotangent()
    touched = pull_back(np.ones_like(cotangent), operands, case.with_backend(backend))[1].value != 0
    unread = ~np.asarray(touched)
    assert unread.any()
    results = [
        pull_back(
            cotangent, operands._replace(value=np.where(unread, other, operands.value)), case.with_backend(backend)
        )
        for other in (0, np.nan)
    ]
    assert_close(*results)


@on_both
@pytest.mark.parametrize(
    "position, value, slope",
    [
        (-1.0, 0, 0),  # outside
        (-0.5, 0.5, 1),
        (0.0, 1, 2),  # right-hand
        (1.0, 3, 3),
        (1.5, 4.5, 3),
        (3.0, 10, -10),
        (3.5, 5, -10),
        (4.0, 0, 0),  # outside
    ],
)
def test_kinks(position, value, slope, backend, x64):
    """The derivative is right-hand on a pixel, and zero at -1 and at the size."""
    row = np.array([1.0, 3.0, 6.0, 10.0])[:, None, None]
    locations = np.array([(position + 0.5) / 4, 0.5]).reshape(1, 1, 1, 1, 2)
    keywords = {"spatial_shapes": [(1, 4)], "backend": backend}

    def attend(locations):
        return jax_dcn.multi_scale_deformable_attention(row, locations, np.ones((1, 1, 1, 1)), **keywords)[0, 0]

    result, gradient = jax.value_and_grad(attend)(locations)
    assert (result, gradient[0, 0, 0, 0, 0]) == (value, 4 * slope)

    def convolve(offset):
        image = row[None, :, :, 0]
        return jax_dcn.dcnv3(image, offset, np.ones((1, 4, 1)), kernel_size=1, padding=0, groups=1, backend=backend)

    offset = np.zeros((1, 4, 2))
    offset[0, 2, 0] = position - 2
    result, gradient = jax.value_and_grad(lambda offset: convolve(offset)[0, 2, 0])(offset)
    assert (result, gradient[0, 2, 0]) == (value, slope)


@pytest.mark.optimized  # which may fuse a product with a sum
@on_both
@pytest.mark.parametrize("size", [7, 25, 49])
def test_positions_round_as_they_are_written(size, backend):
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
