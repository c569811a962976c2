"""Sampling and resizing beside golden files of PyTorch, jax.scipy, SciPy and a numpy reference."""

import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
from jax.scipy import ndimage
from numpy.testing import assert_allclose, assert_array_equal

import jax_dcn
from tests.helpers.deform_conv.cases import BACKENDS, assert_close
from tests.helpers.operators import pull_back
from tests.helpers.pages import ROOT
from tests.helpers.sampling import numpy_reference
from tests.helpers.sampling.cases import GOLDEN, MODES, Grid, Map
from tests.helpers.slow import slow_unless

on_both = pytest.mark.parametrize("backend", BACKENDS)

SECOND_ORDER = sorted((GOLDEN / "second_order").glob("*.npz"))


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in SECOND_ORDER])
@pytest.mark.slow
def test_second_derivatives(path, x64):
    """The derivatives of gx · u + ggrid · v, as PyTorch has them."""
    with np.load(path) as file:
        arrays = dict(file)
    meta = json.loads(str(arrays["meta"]))
    keywords = {name: meta[name] for name in ("method", "padding_mode", "align_corners")}
    sample = functools.partial(jax_dcn.grid_sample, **keywords)

    def of_gradients(x, grid, gy):
        gx, ggrid = jax.vjp(sample, x, grid)[1](gy)
        return (gx * arrays["u"]).sum() + (ggrid * arrays["v"]).sum()

    @jax.jit
    def derivatives(x, grid, gy):
        tangent = jax.jvp(sample, (x, grid), (arrays["u"], arrays["v"]))[1]
        return jax.grad(of_gradients, (0, 1, 2))(x, grid, gy), tangent

    found, tangent = derivatives(arrays["x"], arrays["grid"], arrays["gy"])
    for name, array in zip(("hx", "hgrid", "hgy"), found, strict=True):
        assert_allclose(array, arrays[name], rtol=1e-10, atol=1e-10, err_msg=name)
    assert_allclose(tangent, arrays["hgy"], rtol=1e-10, atol=1e-10)


def recipes():
    """The functions of the page on migrating."""
    page = (ROOT / "docs/migrating.md").read_text()
    lines = page[page.index(">>> def point_sample") :].partition("```")[0].splitlines()
    names = {"jnp": jnp, "jax_dcn": jax_dcn}
    exec("\n".join(line[4:] for line in lines if line.startswith((">>> def", "... "))), names)
    return names


@pytest.mark.parametrize(
    "path",
    [path for name in ("point_sample", "flow_warp") for path in sorted((GOLDEN / name).glob("*.npz"))],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_recipes(path, x64):
    with np.load(path) as file:
        arrays = dict(file)
    meta = json.loads(str(arrays["meta"]))
    function, name = {"point_sample": ("point_sample", "points"), "flow_warp": ("warp", "flow")}[path.parent.name]
    keywords = {key: meta[key] for key in ("method", "padding_mode")}
    sample = functools.partial(recipes()[function], **keywords)

    @jax.jit
    def run(*arguments):
        y, pull_back = jax.vjp(sample, *arguments)
        return y, *pull_back(arrays["gy"])

    y, gx, glocations = run(arrays["x"], arrays[name])
    for actual, key in ((y, "y"), (gx, "gx"), (glocations, f"g{name}")):
        assert_allclose(actual, arrays[key], rtol=1e-10, atol=1e-10, err_msg=key)


# Each number of dimensions, order and backend, once with each mode.
SCIPY_BY_DEFAULT = [
    ((9,), 1, None),
    ((4, 6), 0, None),
    ((4, 6), 1, None),
    ((3, 2, 4), 1, None),
    ((4, 6), 1, "reference"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "image, order, backend",
    [
        slow_unless(case in SCIPY_BY_DEFAULT, *case, id=f"{len(case[0])}d-{case[1]}-{case[2]}")
        for case in itertools.product([(9,), (4, 6), (3, 2, 4)], [0, 1], BACKENDS)
    ],
)
def test_jax_scipy(image, order, backend, mode, x64):
    """The same results and gradients, at halves of pixels and between them."""
    cases = [Map(image, (5, 4), order=order, mode=mode, on_grid=on_grid) for on_grid in (True, False)]
    x, coordinates = cases[0].operands().x[..., 0], np.concatenate([case.operands().locations for case in cases], 1)
    cotangent = cases[0].cotangent()[..., 0].repeat(2, 0)
    for cval in (0.0, -1.5) if mode == "constant" else (-1.5,):
        options = {"order": order, "mode": mode, "cval": cval if mode == "constant" else 0.0}
        theirs = functools.partial(ndimage.map_coordinates, **options)
        ours = functools.partial(jax_dcn.map_coordinates, **options | {"cval": cval}, backend=backend)
        assert_close(*(pull_back(function, cotangent, (x, coordinates)) for function in (ours, theirs)))


# The shape of the coordinates of a batch of 2 x 3 images, and the type of the images.
BATCHES = [
    *((shape, np.float32, {}) for shape in [(2, 3, 7), (1, 3, 7), (2, 1, 7, 2), (1, 1), (2, 3)]),
    ((1, 1, 9), np.float32, {"backend": "reference"}),
    *(((2, 1, 7), dtype, {"cval": 2.0}) for dtype in (np.float32, np.complex64, np.int32)),
    ((2, 1, 7), np.complex64, {"mode": "wrap"}),
]


@pytest.mark.parametrize("shape, dtype, options", BATCHES)
def test_batch_of_map_coordinates(shape, dtype, options):
    """As jax.scipy has it of each image."""
    random = np.random.default_rng(0)
    images = (10 * random.normal(size=(2, 3, 4, 5))).astype(dtype)
    rows, columns = random.uniform(-1, 6, (2, *shape)).astype(np.float32)
    points = np.broadcast_shapes(shape, (2, 3) + (1,) * (len(shape) - 2))
    found = jax_dcn.map_coordinates(images, [rows, columns], 1, batch_dims=2, **options)
    of_vectors = jax_dcn.map_coordinates(images[..., None], [rows, columns], 1, batch_dims=2, **options)
    assert found.dtype == dtype and found.shape == points
    assert_array_equal(of_vectors[..., 0], found)
    scipy_options = {name: value for name, value in options.items() if name != "backend"}
    for index in np.ndindex(2, 3):
        at = [np.broadcast_to(array, points)[index] for array in (rows, columns)]
        expected = ndimage.map_coordinates(images[index], at, 1, **scipy_options)
        assert_allclose(found[index], expected, rtol=1e-5, atol=1e-5)


@on_both
@pytest.mark.parametrize("mode", MODES)
def test_scipy_rounds_only_halves_outside_differently(mode, backend):
    x, at = np.arange(7.0), np.arange(-40, 70) / 4
    name_in_scipy = {"constant": "grid-constant", "wrap": "grid-wrap"}.get(mode, mode)
    expected = scipy.ndimage.map_coordinates(x, [at], order=0, mode=name_in_scipy, cval=9)
    differs = jax_dcn.map_coordinates(x, [at], 0, mode, 9, backend=backend) != expected
    assert differs.any() == (mode != "nearest")
    assert np.all((at[differs] % 1 == 0.5) & ((at[differs] < 0) | (at[differs] > 6)))


def test_cval_may_be_traced(x64):
    x, coordinates = jnp.ones((3, 3)), [jnp.array([-0.25, 1.0, 5.0]), jnp.array([1.0, 1.0, 1.0])]
    sampled, slope = jax.jvp(lambda cval: jax_dcn.map_coordinates(x, coordinates, 1, cval=cval), (3.0,), (1.0,))
    assert_array_equal(sampled, [1.5, 1.0, 3.0])
    assert_array_equal(slope, [0.25, 0.0, 1.0])
    assert np.isnan(jax_dcn.map_coordinates(x, coordinates, 1, cval=np.nan)).tolist() == [True, False, True]


@pytest.mark.parametrize("case", [Grid(), Grid(method="bicubic"), Grid((2, 3, 4))], ids=str)
@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (1, 1), ()], ids=str)
def test_one_grid_for_several_images(case, shape, x64):
    """The result and the gradients are those of a grid that is repeated by hand."""
    x, cotangent = case.operands(lead=(2, 3)).x, case.cotangent(lead=(2, 3))
    grid = case.operands(seed=1, lead=shape).locations
    grid, cotangent = (grid, cotangent) if shape else (grid.reshape(-1, grid.shape[-1]), cotangent.reshape(2, 3, 12, 6))
    repeated = np.broadcast_to(grid, (2, 3, *grid.shape[len(shape) :]))
    sample = case.with_backend()
    result, (gx, ggrid) = pull_back(sample, cotangent, (x, grid))
    expected, (ex, egrid) = pull_back(sample, cotangent, (x, repeated))
    summed = egrid.sum(tuple(axis for axis in (0, 1) if not shape or shape[axis] == 1), keepdims=bool(shape))
    assert_close((result, gx, ggrid), (expected, ex, summed))


@pytest.mark.parametrize("image", [(4, 5), (2, 3, 4)], ids=["NCHW", "NCDHW"])
def test_channels_first(image):
    case = Grid(image)
    x, grid = (array.astype(np.float32) for array in case.operands(lead=(2, 3)))
    found = jax_dcn.grid_sample(np.moveaxis(x, -1, 2), grid, data_format="NCHW" if len(image) == 2 else "NCDHW")
    assert_array_equal(found, np.moveaxis(jax_dcn.grid_sample(x, grid), -1, 2))


# The shapes of images, and the sizes that they get: larger, smaller, equal, and of one pixel.
RESIZED = [
    ((2, 3, 5, 4, 6), (9, 7)),
    ((7, 9, 1), (3, 4)),
    ((1, 5, 6, 2), (5, 1)),
    ((1, 3, 3), (4, 2)),
    ((4, 1, 1), (1, 3)),
    ((2, 7, 16, 3), (20, 12)),
    ((7, 5, 2), (3, 5)),
]
METHODS_OF_RESIZE = list(itertools.product(["bilinear", "bicubic"], [False, True]))
each_resize = pytest.mark.parametrize(
    "method, align_corners",
    [slow_unless((method == "bicubic") == align, method, align) for method, align in METHODS_OF_RESIZE],
)


@on_both
@each_resize
@pytest.mark.parametrize("shape, size", RESIZED)
def test_resize(shape, size, method, align_corners, backend, x64):
    x = np.random.default_rng(0).normal(size=shape)
    cotangent = np.random.default_rng(1).normal(size=(*shape[:-3], *size, shape[-1]))
    function = functools.partial(jax_dcn.resize, size=size, method=method, align_corners=align_corners, backend=backend)
    result, (gradient,) = pull_back(function, cotangent, (x,))
    expected, of_x = numpy_reference.resize(x, size, cotangent, method, align_corners)
    assert_close((result, gradient), (expected, of_x))


def test_resize_with_channels_first():
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 4, 6)).astype(np.float32)
    resized = jax_dcn.resize(np.moveaxis(x, -1, -3), 7, data_format="NCHW")
    assert_array_equal(resized, np.moveaxis(jax_dcn.resize(x, (7, 7)), -1, -3))


def test_positions_of_resize_do_not_depend_on_the_type_of_images():
    x = np.random.default_rng(0).normal(size=(40, 3, 2)).astype(jnp.bfloat16)
    exact, _ = numpy_reference.resize(x.astype(float), (999, 5), np.zeros((999, 5, 2)), "bilinear", False)
    resized = jax_dcn.resize(x, (999, 5))
    assert resized.dtype == jnp.bfloat16
    assert_allclose(resized.astype(np.float32), exact, rtol=2**-8, atol=1e-5)


@on_both
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "constant"])
def test_a_signal_is_read_once(mode, backend):
    """An axis that a signal lacks has no second pixel: an infinite pixel or cotangent of weight 0 would make NaN."""
    signal = jnp.array([1.0, jnp.inf, 3.0])

    def sample(signal):
        return jax_dcn.map_coordinates(signal, [jnp.array([0.5, 1.5])], 1, mode, backend=backend)

    found, transpose = jax.vjp(sample, signal)
    np.testing.assert_array_equal(found, [np.inf, np.inf])
    (gradient,) = transpose(jnp.array([1.0, jnp.inf]))
    np.testing.assert_array_equal(gradient, [0.5, np.inf, np.inf])
