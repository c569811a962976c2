"""RoIAlign, its position-sensitive and its deformable form: values, gradients, special values, errors."""

import functools
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_dcn
from tests.helpers.deform_conv.cases import assert_close
from tests.helpers.roi_pool import align_reference
from tests.helpers.roi_pool.align_reference import Align
from tests.helpers.roi_pool.cases import BACKENDS
from tests.roi_pool.make_golden import OUTPUT, SCALE, regions

GOLDEN_FILES = sorted(pathlib.Path(__file__).parents[1].glob("golden/roi_align/*.npz"))
SIZE = (7, 9)


def pool(x, rois, offset, align, **options):
    options |= {
        "output_size": align.output_size,
        "spatial_scale": align.spatial_scale,
        "sampling_ratio": align.sampling_ratio,
    }
    if align.position_sensitive:
        return jax_dcn.ps_roi_align(x, rois, **options)
    if offset is not None:
        return jax_dcn.deform_roi_pool(x, rois, offset, gamma=align.gamma, **options)
    return jax_dcn.roi_align(x, rois, aligned=align.aligned, mode=align.mode, **options)


@functools.partial(jax.jit, static_argnames=("align", "backend", "data_format"))
def pull_back(cotangent, x, rois, offset, align, backend=None, data_format="NHWC"):
    """(pooled, gradient in x, gradient in offset)."""

    def of(x, offset):
        return pool(x, rois, offset, align, backend=backend, data_format=data_format)

    pooled, pullback = jax.vjp(of, x, offset)
    return pooled, *pullback(cotangent)


def problem(align, seed=0, count=24, features=4, with_offset=False):
    """(cotangent, x, rois, offset)"""
    random = np.random.default_rng(seed)
    bins = align.output_size
    channels = features * bins[0] * bins[1] if align.position_sensitive else features
    x = random.normal(size=(2, *SIZE, channels))
    rois = regions(random, count, 2, max(SIZE) / align.spatial_scale)
    offset = random.normal(size=(count, *bins, 2)) * 2 if with_offset else None
    return random.normal(size=(count, *bins, features)), x, rois, offset


def read_golden(path):
    with np.load(path) as file:
        arrays = dict(file)
    meta = json.loads(str(arrays["meta"]))
    ratio = (meta["sampling_ratio"],) * 2
    align = Align(OUTPUT, SCALE, ratio, meta.get("aligned", True), "avg", meta["position_sensitive"])
    return (arrays["gy"], arrays["x"], arrays["rois"]), (arrays["y"], arrays["gx"]), align


@pytest.mark.optimized
@pytest.mark.parametrize("dtype, backend", [("float64", None), ("float32", None), ("float64", "reference")])
@pytest.mark.parametrize("path", GOLDEN_FILES, ids=lambda path: path.stem)
def test_golden_files(path, dtype, backend):
    given, expected, align = read_golden(path)
    with jax.enable_x64(dtype == "float64"):
        given = [np.asarray(array, dtype) for array in given]
        pooled, d_x, _ = pull_back(*given, None, align=align, backend=backend, data_format="NCHW")
    tolerance = {"float64": 1e-10, "float32": 1e-4}[dtype]
    assert_close((pooled, d_x), expected, tolerance, tolerance)


@pytest.mark.parametrize("path", GOLDEN_FILES, ids=lambda path: path.stem)
def test_the_loops_are_right(path):
    (cotangent, x, rois), expected, align = read_golden(path)
    cotangent, x, *expected = (np.moveaxis(array, 1, -1) for array in (cotangent, x, *expected))
    pooled, d_x, _ = align_reference.pool(x, rois, None, cotangent, align)
    assert_close((pooled, d_x), tuple(expected))


@pytest.mark.parametrize("name", ["aligned", "unaligned", "position_sensitive"])
@pytest.mark.parametrize("ratio", range(4))
def test_torchvision(name, ratio, x64):
    """Several hundred regions, half of them with corners on pixels, in one compiled program for each case."""
    torch, torchvision = pytest.importorskip("torch"), pytest.importorskip("torchvision")
    ps = name == "position_sensitive"
    align = Align((3, 2), 0.375, (ratio, ratio), name != "unaligned", "avg", ps)
    cotangent, x, rois, _ = problem(align, ratio, count=100)
    if ps and not ratio:
        rois[:, 3:] = np.maximum(rois[:, 3:], rois[:, 1:3] + 0.125)  # torchvision divides 0 by 0 otherwise
    cotangent, x = np.moveaxis(cotangent, -1, 1), np.moveaxis(x, -1, 1)
    variable = torch.tensor(x, requires_grad=True)
    options = {} if ps else {"aligned": align.aligned}
    function = torchvision.ops.ps_roi_align if ps else torchvision.ops.roi_align
    y = function(variable, torch.tensor(rois), align.output_size, align.spatial_scale, ratio, **options)
    (gx,) = torch.autograd.grad(y, variable, torch.tensor(cotangent))
    pooled, d_x, _ = pull_back(cotangent, x, rois, None, align=align, data_format="NCHW")
    assert_close((pooled, d_x), (y.detach().numpy(), gx.numpy()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ratio", [(0, 0), (2, 3)])
def test_deformable(ratio, backend, x64):
    align = Align(sampling_ratio=ratio, spatial_scale=0.4, gamma=0.3)
    given = problem(align, with_offset=True)
    cotangent, *operands = given
    assert_close(pull_back(*given, align=align, backend=backend), align_reference.pool(*operands, cotangent, align))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ratio, aligned", [((0, 0), True), ((2, 3), True), ((0, 2), False)])
def test_max(ratio, aligned, backend, x64):
    align = Align(sampling_ratio=ratio, spatial_scale=0.4, aligned=aligned, mode="max")
    given = problem(align, count=12)
    cotangent, *operands = given
    assert_close(pull_back(*given, align=align, backend=backend), align_reference.pool(*operands, cotangent, align))


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_regions(backend, mode, x64):
    """Padding is zero and reads nothing, what is not finite is NaN, and a huge region ends."""
    align = Align(mode=mode, spatial_scale=1.0)
    cotangent, x, rois, _ = problem(align, count=12)
    rois[:8, 0] = 0, 0, -1, 2, 0.5, np.nan, 0, 0
    rois[0, 3], rois[1, 2] = np.inf, np.nan
    rois[2, 1:] = rois[3, 1:] = np.inf
    rois[6, 1:] = -300, -200, 350, 400  # most of its points are outside
    rois[7, 1:] = -1e18, -1e300, 1e18, 1e300
    expected = align_reference.pool(x, np.delete(rois, 7, 0), None, np.delete(cotangent, 7, 0), align)
    finite = np.isfinite(rois[:, 1:]).all(1) | (rois[:, 0] < 0) | (rois[:, 0] > 1) | np.isnan(rois[:, 0])
    pooled, d_x, _ = pull_back(cotangent * finite[:, None, None, None], x, rois, None, align=align, backend=backend)
    assert_close(np.delete(pooled, 7, 0), expected[0])
    assert np.isfinite(pooled[7]).all()
    assert np.isfinite(d_x).all()
    without_image, _, _ = pull_back(cotangent, x * np.nan, rois, None, align=align, backend=backend)
    assert not without_image[np.array([2, 3, 5])].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_offsets_that_are_not_finite(backend):
    align = Align(sampling_ratio=(0, 2))
    cotangent, x, rois, offset = map(np.float32, problem(align, count=2, with_offset=True))
    rois[:] = 0, 1, 1, 6, 5
    offset[0, 0, 0], offset[0, 1, 1] = (np.nan, 0), (0, -np.inf)
    pooled, d_x, d_offset = pull_back(cotangent, x, rois, offset, align=align, backend=backend)
    assert np.isnan(pooled[0, 0, 0]).all() and np.isnan(d_offset[0, 0, 0]).all()
    assert not pooled[0, 1, 1].any() and not d_offset[0, 1, 1].any()
    assert np.isfinite(pooled).sum() == pooled.size - pooled.shape[-1] and np.isfinite(d_x).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode, ratio", [("avg", 0), ("avg", 2), ("max", 0)])
def test_only_pixels_with_a_weight_are_read(mode, ratio, backend, x64):
    """Others may be infinite or NaN, also those beside a point that lies on a pixel."""
    align = Align(sampling_ratio=(ratio, ratio), mode=mode)
    cotangent, x, rois, _ = problem(align, count=3)
    rois[:] = [0, 1.0, 1.0, 5.0, 4.0], [0, 2.5, 0.5, 6.5, 3.5], [0, 1.3, 2.2, 3.3, 4.4]  # many points on pixels
    given = np.ones_like(cotangent), x, rois, None
    mean = Align(sampling_ratio=(ratio, ratio))
    touched = np.asarray(pull_back(*given, align=mean)[1]) > 0
    assert 0 < touched.sum() < touched.size
    results, with_nan = (
        pull_back(cotangent, np.where(touched, x, other), rois, None, align=align, backend=backend)
        for other in (0, np.nan)
    )
    assert_close(results, with_nan)


@pytest.mark.parametrize("backend", BACKENDS)
def test_kinks(backend, x64):
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
    pooled, _, d_offset = pull_back(*given, align=align, backend=backend)
    assert_close((pooled[:, 0, 0, 0], d_offset[:, 0, 0, 0]), (value, 4 * slope))


def test_the_first_of_equal_points_and_nan_win(x64):
    align = Align((1, 1), sampling_ratio=(2, 2), mode="max")
    x, rois = np.ones((1, 4, 4, 1)), np.array([[0, 0.5, 0.5, 4.5, 4.5]])  # points at 1 and 3
    for backend in BACKENDS:
        _, d_x, _ = pull_back(np.ones((1, 1, 1, 1)), x, rois, None, align=align, backend=backend)
        assert np.argwhere(d_x).tolist() == [[0, 1, 1, 0]]
        pooled, *_ = pull_back(
            np.ones((1, 1, 1, 1)), np.where(np.eye(4)[None, ..., None] * np.arange(4)[:, None, None] == 3, np.nan, x),
            rois, None, align=align, backend=backend,
        )  # fmt: skip
        assert np.isnan(pooled).all()
    # mmcv's maximum starts at -10000.
    assert jax_dcn.roi_align(-2e4 * x, rois, output_size=1, sampling_ratio=2, mode="max").item() == -2e4


@pytest.mark.parametrize("backend", [None, pytest.param("reference", marks=pytest.mark.thorough)])
def test_nothing_to_compute(backend):
    """No regions, images, rows, columns or channels: zeros, in one program."""
    shapes = [((1, 4, 4, 2), 0), ((0, 3, 3, 2), 2), ((1, 0, 4, 2), 2), ((1, 3, 0, 2), 2), ((1, 3, 3, 0), 2)]
    rois = jnp.array([[0, 0, 0, 3, 3]] * 2)

    @jax.jit
    def run(images):
        def of(image, count, mode):
            return jax_dcn.roi_align(image, rois[:count], output_size=2, mode=mode, backend=backend)

        return [
            jax.vjp(functools.partial(of, count=count, mode=mode), image)[0]
            + jax.jvp(functools.partial(of, count=count, mode=mode), (image,), (image,))[1]
            for image, (_, count) in zip(images, shapes, strict=True)
            for mode in ("avg", "max")
        ]

    assert not any(result.any() for result in run([jnp.ones(shape) for shape, _ in shapes]))


def test_half_precision():
    for mode in ("avg", "max"):
        align = Align(spatial_scale=0.4, mode=mode)
        cotangent, x, rois, _ = problem(align)
        with jax.enable_x64(True):
            exact = pull_back(cotangent, x, rois, None, align=align)
        x, cotangent = (np.asarray(array, jnp.bfloat16) for array in (x, cotangent))
        pooled, d_x, _ = pull_back(cotangent, x, np.float32(rois), None, align=align)
        assert pooled.dtype == d_x.dtype == jnp.bfloat16
        assert_close(pooled, exact[0], 0.03, 0.03)
        if mode == "avg":
            assert_close(d_x, exact[1], 0.03, 0.03 * np.abs(exact[1]).max())


@pytest.mark.thorough
def test_derivatives_of_both_orders_and_modes(x64):
    align = Align((2, 1), sampling_ratio=(0, 1), gamma=0.2)
    _, x, rois, offset = problem(align, count=3, features=2, with_offset=True)
    rois[:, 0] = 0, 1, 0
    function = jax.jit(lambda x, offset: pool(x, rois, offset, align))
    check_grads(function, (x[:, :4, :5], offset), 2, ["fwd", "rev"], rtol=1e-5, eps=1e-6)


def test_vmap_and_tangents(x64):
    for mode in ("avg", "max"):
        align = Align(spatial_scale=0.4, mode=mode)
        _, x, rois, _ = problem(align, count=3, features=2)

        def gradient(x, rois, align=align):
            return jax.grad(lambda x: jnp.sin(pool(x, rois, None, align)).sum())(x)

        batch = np.stack([x, x[::-1]])
        mapped = jax.jit(jax.vmap(gradient, (0, None)))(batch, rois)
        assert_close(mapped, jnp.stack([gradient(one, rois) for one in batch]))
        tangent = jax.jvp(
            lambda x, rois=rois, align=align: jnp.sin(pool(x, rois, None, align)).sum(), (x,), (x[::-1],)
        )[1]
        assert_close(tangent, (gradient(x, rois) * x[::-1]).sum())


X, ROIS = jnp.zeros((1, 5, 6, 12)), jnp.zeros((3, 5))
WRONG = [
    (jax_dcn.roi_align, {"sampling_ratio": -1}, ValueError, "sampling_ratio must be a non-negative int .*-1"),
    (jax_dcn.roi_align, {"sampling_ratio": 1.5}, TypeError, "sampling_ratio must .*1.5"),
    (jax_dcn.roi_align, {"aligned": 1}, ValueError, "aligned must .*1"),
    (jax_dcn.roi_align, {"mode": "mean"}, ValueError, "mode must .*'mean'"),
    (jax_dcn.roi_align, {"output_size": 0}, ValueError, "output_size must .*0"),
    (jax_dcn.roi_align, {"x": X[0]}, ValueError, r"x must .*\[..., N, H, W, C\]"),
    (jax_dcn.ps_roi_align, {"output_size": 5}, ValueError, r"x's channels .*25 cells of output_size=\(5, 5\), got 12"),
    (jax_dcn.deform_roi_pool, {"gamma": "1"}, TypeError, "gamma must .*'1'"),
    (
        jax_dcn.deform_roi_pool,
        {"offset": jnp.zeros((3, 2, 2, 4))},
        ValueError,
        r"offset must .*\(3, 2, 2, 2\) .*output",
    ),
    (jax_dcn.deform_roi_pool, {"offset": jnp.zeros((3, 2, 2))}, ValueError, r"offset must .*\[..., R, part, part, 2\]"),
]


@pytest.mark.parametrize("function, wrong, error, message", WRONG)
def test_errors(function, wrong, error, message):
    with pytest.raises(error, match=re.compile(message)):
        jax.eval_shape(lambda: function(**{"x": X, "rois": ROIS, "output_size": 2} | wrong))
