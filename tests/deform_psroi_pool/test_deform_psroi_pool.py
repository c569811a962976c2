"""Values and derivatives against golden files and the reference; regions that are padding or not finite; errors."""

import functools
import itertools
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_dcn

GOLDEN_FILES = sorted(pathlib.Path(__file__).parents[1].glob("golden/deform_psroi_pool/*.npz"))
# 6 features in cells of 3 x 2, bins that are neither square nor as many as parts, 3 classes
OPTIONS = {
    "output_size": (5, 4),
    "group_size": (3, 2),
    "part_size": (2, 3),
    "sample_per_part": (3, 2),
    "spatial_scale": 0.5,
    "trans_std": 0.2,
}


def operands(seed=0, dtype=np.float64, lead=()):
    random = np.random.default_rng(seed)
    x = random.normal(size=(*lead, 2, 9, 8, 36))
    corner = random.uniform(-4, 12, size=(*lead, 6, 2))
    size = random.uniform(-1, 14, size=(*lead, 6, 2))  # some inverted, some reach outside
    image = random.integers(-1, 3, size=(*lead, 6, 1))  # some are padding
    rois = np.concatenate([image, corner, corner + size], -1)
    offset = random.normal(size=(*lead, 6, 2, 3, 6)) * 2
    return x.astype(dtype), rois, offset


def pool(x, rois, offset, **options):
    return jax_dcn.deform_psroi_pool(x, rois, offset, **OPTIONS | options)


@functools.partial(jax.jit, static_argnames="backend")
def pull_back(cotangent, x, rois, offset, backend=None):
    """(y, gradients in x and offset)."""
    y, pull_back = jax.vjp(lambda x, offset: pool(x, rois, offset, backend=backend), x, offset)
    return y, *pull_back(cotangent)


COTANGENT = np.random.default_rng(9).normal(size=(6, 5, 4, 6))


def assert_close(actual, expected, rtol=1e-10, atol=1e-10):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(e, np.float64), rtol, atol)


def read_golden(path):
    with np.load(path) as file:
        arrays = dict(file)
    attributes = json.loads(str(arrays["meta"]))["attrs"]
    options = {
        "output_size": attributes["pooled_size"],
        "spatial_scale": float(np.float32(attributes["spatial_scale"])),
        "group_size": attributes["group_size"],
        "part_size": attributes["part_size"] or None,
        "sample_per_part": attributes["sample_per_part"],
        "trans_std": float(np.float32(attributes["trans_std"])),
    }
    if attributes["no_trans"]:
        arrays["trans"] = arrays["gtrans"] = None
    return arrays, options


@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("path", GOLDEN_FILES, ids=lambda path: path.stem)
def test_golden_files(path, backend, dtype, data_format):
    arrays, options = read_golden(path)

    def laid_out(name):
        array = arrays[name]
        if array is None:
            return None
        return np.moveaxis(array, 1, -1) if data_format == "NHWC" else array

    def run(x, offset, cotangent):
        def of(x, offset):
            rois = jnp.asarray(arrays["rois"], dtype)
            return jax_dcn.deform_psroi_pool(x, rois, offset, data_format=data_format, backend=backend, **options)

        y, pull_back = jax.vjp(of, x, offset)
        return y, pull_back(cotangent)

    with jax.enable_x64(dtype == "float64"):
        args = jax.tree.map(lambda array: jnp.asarray(array, dtype), [laid_out(name) for name in ("x", "trans", "gy")])
        y, (d_x, d_offset) = jax.jit(run)(*args)
    tolerance = {"float64": 1e-10, "float32": 1e-4}[dtype]
    expected = [laid_out(name) for name in ("y", "gx", "gtrans")]
    assert_close([y, d_x, d_offset], expected, tolerance, tolerance)


@pytest.mark.parametrize("seed", range(4))
def test_kernels_are_the_reference(seed, x64):
    arguments = COTANGENT, *operands(seed)
    assert_close(pull_back(*arguments), pull_back(*arguments, backend="reference"))


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-4), ("bfloat16", 3e-2), ("float16", 4e-3)])
def test_dtypes(dtype, tolerance):
    x, rois, offset = operands()
    with jax.enable_x64(True):
        x = np.asarray(jnp.asarray(x, dtype), np.float64)
        expected = jax.vjp(lambda x: pool(x, rois, offset), x)
        expected = expected[0], *expected[1](jnp.ones_like(expected[0]))
    y, pull_back = jax.vjp(lambda x: pool(x, jnp.float32(rois), jnp.float32(offset)), jnp.asarray(x, dtype))
    actual = y, *pull_back(jnp.ones_like(y))
    assert {a.dtype.name for a in actual} == {dtype}
    assert_close(actual, expected, tolerance, tolerance)


def test_coordinates_keep_their_precision_in_half_precision_images():
    x = jnp.broadcast_to(jnp.arange(4096.0), (1, 1, 4096))[..., None].astype(jnp.float16)
    rois = jnp.array([[0.0, 3001.0, 0.0, 3001.0, 0.0]])
    assert jax_dcn.psroi_pool(x, rois, output_size=1, sample_per_part=1)[0, 0, 0, 0] == 3000.5 // 2 * 2


def test_gradients_of_both_orders_and_modes(x64):
    random = np.random.default_rng(3)
    x, rois = random.normal(size=(1, 5, 6, 4)), np.array([[0, 1, 0, 4, 3], [0, -2, 1, 3, 9]], float)
    offset = random.uniform(-1, 1, size=(2, 2, 2, 2))
    small = {"output_size": 2, "group_size": (1, 2), "part_size": 2, "sample_per_part": 2}

    @jax.jit
    def function(x, offset):
        return pool(x, rois, offset, **small)

    check_grads(function, (x, offset), 2, ["fwd", "rev"], rtol=1e-5, eps=1e-6)


def test_regions_have_no_gradient(x64):
    x, rois, offset = operands()
    gradient = jax.jit(jax.grad(lambda rois: pool(x, rois, offset).sum()))(rois)
    np.testing.assert_array_equal(gradient, np.zeros_like(rois))


@pytest.mark.parametrize("axes", [a for a in itertools.product([0, None], repeat=3) if a != (None,) * 3])
def test_vmap(axes, x64):
    batched, single = operands(lead=(3,)), operands()
    mixed = [b if axis == 0 else s for b, s, axis in zip(batched, single, axes, strict=True)]

    def gradients(x, rois, offset):
        return jax.value_and_grad(lambda x, offset: jnp.sin(pool(x, rois, offset)).sum(), (0, 1))(x, offset)

    rows = [gradients(*(m[i] if axis == 0 else m for m, axis in zip(mixed, axes, strict=True))) for i in range(3)]
    assert_close(jax.jit(jax.vmap(gradients, axes))(*mixed), jax.tree.map(lambda *r: jnp.stack(r), *rows))


@pytest.mark.parametrize("backend", [None, "reference"])
def test_padding_and_regions_that_are_not_finite(backend):
    x, rois, offset = (jnp.asarray(a, jnp.float32) for a in operands())
    rois = rois.at[:, 0].set(jnp.array([-1.0, 2.0, 0.0, 0.0, 1.0, jnp.nan]))
    rois = rois.at[2, 3].set(jnp.nan).at[3, 2].set(jnp.inf)
    y, d_x, d_offset = pull_back(jnp.float32(COTANGENT), x, rois, offset, backend)
    assert (y[jnp.array([0, 1, 5])] == 0).all()
    assert jnp.isnan(y[2:4]).all()
    assert jnp.isfinite(y[4]).all() and y[4].any()
    assert not d_offset[jnp.array([0, 1, 2, 3, 5])].any()
    assert not d_x[0].any() and jnp.isfinite(d_x).all()


@pytest.mark.parametrize("backend", [None, "reference"])
def test_offsets_that_are_not_finite(backend):
    x, rois, offset = (jnp.asarray(a, jnp.float32) for a in operands())
    rois = rois.at[0].set(jnp.array([0.0, 2.0, 2.0, 12.0, 12.0]))
    offset = offset.at[0, 0, 0].set(jnp.array([jnp.nan, 0.0, jnp.inf, 0.0, 0.0, 0.0]))
    y, d_x, d_offset = pull_back(jnp.float32(COTANGENT), x, rois, offset, backend)
    bin_ = y[0, 0, 0].reshape(3, 2)  # class, feature
    assert jnp.isnan(bin_[0]).all()
    assert (bin_[1] == 0).all()
    assert jnp.isfinite(bin_[2]).all()
    assert jnp.isnan(d_offset[0, 0, 0, :2]).all()
    assert (d_offset[0, 0, 0, 2:4] == 0).all()
    assert jnp.isfinite(d_x).all()


def test_no_regions_and_no_pixels():
    x, _, _ = operands(dtype=np.float32)
    none = jnp.zeros((0, 5)), jnp.zeros((0, 2, 3, 6))
    assert pool(x, *none).shape == (0, 5, 4, 6)
    assert not jax.grad(lambda x: pool(x, *none).sum())(x).any()
    rois = jnp.array([[0.0, -1.0, -1.0, 3.0, 3.0]])
    assert not jax_dcn.psroi_pool(jnp.zeros((1, 0, 4, 2)), rois, output_size=2).any()


def test_only_what_is_asked():
    x, rois, offset = (jnp.asarray(a, jnp.float32) for a in operands())
    targets = {"x": "dcn_psroi_pool_input_cotangent", "offset": "dcn_psroi_pool_offset_cotangent"}
    for argnum, name in ((0, "x"), (2, "offset")):
        gradient = jax.grad(lambda *arrays: jnp.sin(pool(*arrays)).sum(), argnum)
        text = jax.jit(gradient).lower(x, rois, offset).compile().as_text()
        found = {operand for operand, target in targets.items() if f'"{target}"' in text}
        assert found == {name}
        assert 'custom_call_target="dcn_psroi_pool"' in text


def test_results_repeat(x64):
    x, rois, offset = operands(dtype=np.float32)
    gradient = jax.jit(jax.grad(lambda x, offset: jnp.sin(pool(x, rois, offset)).sum(), (0, 1)))
    first, second = gradient(x, offset), gradient(x, offset)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_pooling_without_offset_is_that_with_zero_offset():
    x, rois, offset = (jnp.asarray(a, jnp.float32) for a in operands())
    plain = {key: value for key, value in OPTIONS.items() if key not in ("part_size", "trans_std")}
    assert_close(jax_dcn.psroi_pool(x, rois, **plain), pool(x, rois, jnp.zeros_like(offset)), 1e-6, 1e-6)


X, ROIS, OFFSET = (jnp.asarray(a, jnp.float32) for a in operands())
WRONG = [
    ({"x": X[0]}, ValueError, ["x must", "[..., N, H, W, C]", "(9, 8, 36)"]),
    ({"x": X[..., :35]}, ValueError, ["x's channels", "6 cells", "35"]),
    ({"x": X.astype(int)}, TypeError, ["x must", "int32"]),
    ({"rois": ROIS[:, :4]}, ValueError, ["rois must", "(R, 5)", "(6, 4)"]),
    ({"rois": ROIS[None]}, ValueError, ["rois must", "[..., R, 5]", "(1, 6, 5)"]),
    ({"offset": OFFSET[:5]}, ValueError, ["offset must", "(6, 2, 3, 2·classes)", "(5, 2, 3, 6)"]),
    ({"offset": OFFSET[..., :5]}, ValueError, ["offset must", "2·classes", "(6, 2, 3, 5)"]),
    ({"offset": jnp.zeros((6, 2, 3, 8))}, ValueError, ["offset", "6 features", "4 classes"]),
    ({"part_size": 3}, ValueError, ["offset must", "part_size=(3, 3)", "(6, 2, 3, 6)"]),
    ({"output_size": 0}, ValueError, ["output_size must", "0"]),
    ({"group_size": 1.5}, TypeError, ["group_size must", "1.5"]),
    ({"sample_per_part": -1}, ValueError, ["sample_per_part must", "-1"]),
    ({"spatial_scale": "1"}, TypeError, ["spatial_scale must", "'1'"]),
    ({"trans_std": float("nan")}, ValueError, ["trans_std must", "nan"]),
    ({"data_format": "NWHC"}, ValueError, ["data_format must", "'NWHC'"]),
    ({"backend": "cpu"}, ValueError, ["backend must", "'cpu'"]),
]


@pytest.mark.parametrize("wrong, error, words", WRONG)
def test_errors_name_the_argument(wrong, error, words):
    arguments = {"x": X, "rois": ROIS, "offset": OFFSET} | OPTIONS | wrong
    with pytest.raises(error, match=".*".join(map(re.escape, words))):
        jax.eval_shape(lambda: jax_dcn.deform_psroi_pool(**arguments))
