"""Splines of map_coordinates against SciPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal

import jax_dcn
from tests.helpers.slow import slow, slow_unless

SCIPY_MODES = {name: name for name in ("constant", "grid-constant", "nearest", "mirror", "reflect")} | {
    "wrap": "grid-wrap"
}
SHAPES = [(1,), (2,), (40,), (5, 33), (24, 27, 25)]
ORDERS = [2, 3, 4, 5]


def problem(shape):
    """An image, and coordinates in it, far outside, and at whole numbers."""
    random = np.random.default_rng(0)
    inside = [random.uniform(0, size - 1, 40) for size in shape]
    outside = [random.uniform(-2.5 * size - 3, 3.5 * size + 3, 40) for size in shape]
    coordinates = [
        np.concatenate([*both, [0, size - 1, -1, size]]) for size, *both in zip(shape, inside, outside, strict=True)
    ]
    return random.normal(size=shape), coordinates


@pytest.mark.parametrize("mode", SCIPY_MODES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [slow_unless(shape in ((2,), (5, 33)), shape) for shape in SHAPES])
def test_scipy(shape, order, mode, x64):
    if mode == "reflect" and 1 < min(shape) < 15:
        pytest.skip("SciPy's splines do not pass through the pixels of short axes")
    image, coordinates = problem(shape)
    options = {"order": order, "cval": 1.5}
    expected = scipy.ndimage.map_coordinates(image, coordinates, mode=SCIPY_MODES[mode], **options)
    found = jax_dcn.map_coordinates(image, coordinates, mode=mode, **options)
    assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mode", SCIPY_MODES)
@pytest.mark.parametrize("order", [slow_unless(order == 3, order) for order in ORDERS])
def test_coefficients(order, mode, x64):
    """They, and their samples, are those of SciPy."""
    image, coordinates = problem((40, 33))
    expected = scipy.ndimage.spline_filter(image, order, mode=SCIPY_MODES[mode])
    filtered = jax_dcn.spline_filter(image, order, mode)
    assert_allclose(filtered, expected, rtol=0, atol=1e-12)
    found = jax_dcn.map_coordinates(filtered, coordinates, order, mode, 1.5, prefilter=False)
    options = {"order": order, "mode": SCIPY_MODES[mode], "cval": 1.5, "prefilter": False}
    assert_allclose(found, scipy.ndimage.map_coordinates(expected, coordinates, **options), rtol=0, atol=1e-10)


@pytest.mark.parametrize("order", [0, 1])
def test_orders_without_a_filter(order):
    image = np.arange(12, dtype=np.int32).reshape(3, 4)
    filtered = jax_dcn.spline_filter(image, order)
    assert filtered.dtype == "float32"
    assert_array_equal(filtered, image)
    at = [np.array([0.75, 9.0]), np.array([2.25, 0.0])]
    assert_array_equal(
        jax_dcn.map_coordinates(filtered, at, order, prefilter=False), jax_dcn.map_coordinates(filtered, at, order)
    )


def test_coefficients_of_some_axes(x64):
    image = np.random.default_rng(0).normal(size=(2, 20, 3, 30))
    filtered = jax.jit(lambda image: jax_dcn.spline_filter(image, 5, "wrap", axes=(1, 3)))(image)
    one = scipy.ndimage.spline_filter(image[1, :, 2], 5, mode="grid-wrap")
    assert_allclose(filtered[1, :, 2], one, rtol=0, atol=1e-12)
    of_complex = jax_dcn.spline_filter(image - 2j * image, 5, "wrap", axes=iter((1, -1)))
    assert_allclose(of_complex, filtered - 2j * filtered, rtol=0, atol=1e-12)
    at = [np.array([[3.5, 7.0], [2.25, 12.0]]), np.array([[20.5, 1.0], [8.75, 4.0]])]
    images, options = image.swapaxes(2, 3), {"order": 5, "mode": "wrap", "batch_dims": 1}
    of_filtered = jax_dcn.map_coordinates(filtered.swapaxes(2, 3), at, prefilter=False, **options)
    assert_allclose(of_filtered, jax_dcn.map_coordinates(images, at, **options), rtol=0, atol=1e-12)
    along_one = functools.partial(jax_dcn.spline_filter, axes=(1,))
    check_grads(along_one, (image[:1, :, :1, :2],), 1, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype, found", [("bfloat16", "float32"), ("uint8", "float32"), ("float32", "float32")])
def test_types_of_coefficients(dtype, found):
    image = np.arange(20).astype(dtype)
    filtered = jax_dcn.spline_filter(image)
    assert filtered.dtype == found
    assert_allclose(filtered, scipy.ndimage.spline_filter(image.astype(float)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", [None, "reference"])
def test_float32_far_from_the_first_pixel(backend):
    """The error is that of a coordinate in float32."""
    image = np.random.default_rng(4).normal(size=5000).astype("float32")
    at = np.random.default_rng(5).uniform(4000, 4999, 500).astype("float32")
    found = jax_dcn.map_coordinates(image, [at], 3, "mirror", backend=backend)
    assert_allclose(found, scipy.ndimage.map_coordinates(image, [at], order=3, mode="mirror"), rtol=0, atol=3e-3)


TYPES = [bool, *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]


@pytest.mark.parametrize("mode", [slow_unless(mode == "wrap", mode) for mode in SCIPY_MODES])
@pytest.mark.parametrize("order", [slow_unless(order in (0, 1, 3), order) for order in range(6)])
@pytest.mark.parametrize("dtype", TYPES)
def test_types_without_fractions(dtype, order, mode):
    """Near their limits, which splines exceed: there they are clipped. Order 0 gives the pixels themselves."""
    low, high = (0, 1) if dtype is bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    random = np.random.default_rng(0)
    image = random.choice(np.array([low, high, high - 1, low + 1, high // 3], dtype), 40)
    at = random.integers(-9 * 64, 49 * 64, 200) / 64 + 1 / 128  # exact in float32, and no half
    cval = high - 1
    with jax.enable_x64(np.dtype(dtype).itemsize > 4):
        found = np.asarray(jax_dcn.map_coordinates(image, [at], order, mode, cval))
        exact = 2.0 ** (-44 if jax.config.jax_enable_x64 else -15) * float(high)
    assert found.dtype == dtype
    numbers = np.arange(40.0) if order == 0 else image.astype(float)
    name = "grid-constant" if order < 2 and mode == "constant" else SCIPY_MODES[mode]
    expected = scipy.ndimage.map_coordinates(numbers, [at], order=order, mode=name, cval=-1 if order == 0 else cval)
    if order == 0:
        with_cval = np.append(image, np.array(cval, dtype))
        assert_array_equal(found, with_cval[expected.astype(int)])
    elif dtype is bool:
        assert_array_equal(found, expected >= 0.5)
    else:
        assert order == 1 or (expected.min() < low and expected.max() > high)
        assert_allclose(found.astype(float), expected.clip(low, high), rtol=0, atol=0.5 + exact)


def test_limits_of_types():
    """A float32 of the largest int32 is above it, and its samples are not."""
    for dtype in (np.int32, np.uint32):
        limits = np.iinfo(dtype)
        image = np.array([limits.min, limits.max], dtype)
        for order in range(6):
            found = np.asarray(jax_dcn.map_coordinates(image, [np.array([0.0, 1.0])], np.int64(order), "nearest"))
            assert_allclose(found, image, rtol=2**-20, atol=2**-20 * limits.max)
            assert found[1] == limits.max or order > 1


def test_bool_is_false_far_below_zero():
    mask = np.random.default_rng(0).random((6, 6, 6)) > 0.5
    at = np.random.default_rng(1).uniform(0, 5, (3, 20_000)).astype("float32")
    expected = scipy.ndimage.map_coordinates(mask.astype(float), at, order=5)
    assert expected.min() < -0.5
    differs = np.asarray(jax_dcn.map_coordinates(mask, at, 5)) != (expected >= 0.5)
    assert_allclose(expected[differs], 0.5, atol=1e-5)


def test_coordinates_of_8_bits():
    found = jax_dcn.map_coordinates(np.arange(300.0), [np.array([254, 255], np.uint8)], 1, cval=-1.0)
    assert_allclose(found, [254, 255])


def test_no_pixels():
    with pytest.raises(ValueError, match=r"input must have pixels along each axis for order=3, got shape \(0, 4\)"):
        jax_dcn.map_coordinates(np.zeros((0, 4)), [np.zeros(2)] * 2, 3)


@pytest.mark.parametrize("size", [2, 4])
def test_reflect_passes_through_the_pixels_of_a_short_axis(size, x64):
    """In SciPy 1.17 it does not: the start of its recursion reads a sum that it has already changed."""
    image = np.random.default_rng(1).normal(size=size)
    at = np.arange(-size, 2 * size)
    found = jax_dcn.map_coordinates(image, [at], 5, "reflect")
    assert_allclose(found, np.concatenate([image[::-1], image, image[::-1]]), atol=1e-13)


@pytest.mark.parametrize("order", range(6))
def test_fractional_values_outside(order):
    """They are rounded, as samples are."""
    image = np.arange(20, dtype=np.uint8).reshape(4, 5)
    outside = [np.array([-3.0]), np.array([9.0])]
    for cval in (0.4, 2.5, 2.7):
        found = jax.jit(lambda cval: jax_dcn.map_coordinates(image, outside, order, cval=cval))(cval)
        assert found == jax_dcn.map_coordinates(image, outside, order, cval=cval) == np.floor(cval + 0.5)
    for cval, expected in ((0.4, False), (0.5, True)):
        assert jax_dcn.map_coordinates(image > 3, outside, order, cval=cval) == expected
    for cval in (1 + 2j, None, "3"):
        with pytest.raises(TypeError, match="cval must be a number that fits input of type uint8, got"):
            jax_dcn.map_coordinates(image, outside, order, cval=cval)


@pytest.mark.parametrize(
    "order, mode, shape, derivatives",
    [(3, "constant", (6, 5), 1), slow(2, "mirror", (6, 5), 1), slow(4, "wrap", (7,), 2), slow(5, "nearest", (7,), 2)],
)
def test_derivatives(order, mode, shape, derivatives, x64):
    """They are those of finite differences, also at whole numbers. "constant" jumps at the border."""
    image, coordinates = problem(shape)
    is_inside = np.all(
        [np.abs(2 * one - size + 1) < size - 1.1 for one, size in zip(coordinates, shape, strict=True)], 0
    )
    at = [np.append(one[is_inside][:6], 2.0) for one in coordinates]
    sample = jax.jit(functools.partial(jax_dcn.map_coordinates, order=order, mode=mode))
    check_grads(sample, (image, at), order=derivatives, atol=1e-5, rtol=1e-5)


def test_types_and_batches():
    random = np.random.default_rng(3)
    images = random.normal(size=(2, 12, 10, 3))
    rows, columns = random.uniform(0, 9, (2, 2, 7)).astype("float32")
    found = jax_dcn.map_coordinates(images.astype("float32"), [rows, columns], 3, batch_dims=1)
    expected = [
        [scipy.ndimage.map_coordinates(image[..., channel], at, order=3) for channel in range(3)]
        for image, at in zip(images, np.stack([rows, columns], 1), strict=True)
    ]
    assert found.dtype == "float32" and found.shape == (2, 7, 3)
    assert_allclose(found, np.moveaxis(expected, 1, 2), atol=1e-5)
    narrow = jax_dcn.map_coordinates(images.astype(jnp.bfloat16), [rows, columns], 3, batch_dims=1)
    exact = jax_dcn.map_coordinates(images.astype(jnp.bfloat16).astype("float32"), [rows, columns], 3, batch_dims=1)
    assert narrow.dtype == jnp.bfloat16
    assert_allclose(narrow.astype("float32"), exact, rtol=2**-8)
    whole = (100 * images[0, ..., 0]).astype("int32")
    assert_allclose(
        jax_dcn.map_coordinates(whole, [rows[0], columns[0]], 5, "mirror"),
        scipy.ndimage.map_coordinates(whole, [rows[0], columns[0]], order=5, mode="mirror"),
    )


@pytest.mark.parametrize("mode", SCIPY_MODES)
def test_nan_and_infinity(mode):
    values = jnp.array([np.nan, np.inf, -np.inf, 1.0])
    found = jax_dcn.map_coordinates(jnp.arange(20.0).reshape(4, 5), [values, jnp.ones(4)], 3, mode, 7.0)
    expected = {"constant": [7, 7], "grid-constant": [7, 7], "nearest": [16, 1]}.get(mode, [0, 0])
    assert np.isnan(found[0])
    assert_allclose(found[1:], [*expected, 6], atol=1e-4)
