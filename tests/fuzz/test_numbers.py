"""Special values in every operand: the results and gradients of the kernels are those of the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn

SIDE = 5  # of images, whose 25 pixels hold one special value each
DTYPES = ["float16", "bfloat16", "float32", "float64"]


def special_values(dtype):
    """25 values: coordinates far outside, on borders and on pixels, extreme values, infinities and NaN."""
    info = jnp.finfo(dtype)
    extreme = [np.inf, -np.inf, np.nan, info.max, info.min, info.tiny, -info.tiny, info.smallest_subnormal, 2**31]
    near = [0.0, -0.0, 0.5, -0.5, 1, -1, -1.5, SIDE - 1, SIDE - 0.5, SIDE, -SIDE, 2.5, -2.5, 2**24 + 1, -(2**31), 1e-3]
    with np.errstate(over="ignore"):
        return np.array([*extreme, *near], np.float64).astype(dtype)


def check_both(function, operands, dtype, backend=None, tolerance=8):
    """Compares the kernels of a backend with the reference, with a tolerance in units of the type's resolution.

    Values so large that sums of them may overflow count as NaN, because the result depends on the order of summation.
    """

    def results(backend):
        y, pull = jax.vjp(lambda *operands: function(*operands, backend=backend), *operands)
        return y, *pull(jnp.ones_like(y))

    def ordinary(array):
        array = np.asarray(array, np.float64)
        return np.where(np.abs(array) < float(jnp.finfo(dtype).max) ** 0.5, array, np.nan)

    tolerance *= float(jnp.finfo(dtype).eps)
    for result, expected in zip(*(jax.jit(results, static_argnums=0)(b) for b in (backend, "reference")), strict=True):
        np.testing.assert_allclose(ordinary(result), ordinary(expected), rtol=tolerance, atol=tolerance)


OPERANDS = ["x", "offset", "mask", "weight"]


PLACES = [*((operand, 0) for operand in OPERANDS), ("offset", "CIRCULAR")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where, padding", PLACES)
def test_convolution(where, padding, dtype, x64):
    check_convolution(where, padding, dtype)


@pytest.mark.platforms("cpu")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("where, padding", PLACES)
def test_fused_convolution_of_the_cpu(where, padding, dtype):
    check_convolution(where, padding, dtype, "fused", 512)  # sums that cancel, in another order


def check_convolution(where, padding, dtype, backend=None, tolerance=8):
    wide = jnp.promote_types(dtype, jnp.float32)
    generator = np.random.default_rng(0)
    operands = {
        "x": generator.uniform(-1, 1, (1, SIDE, SIDE, 2)).astype(dtype),
        "offset": generator.uniform(-1, 1, (1, SIDE, SIDE, 2)).astype(wide),
        "weight": generator.uniform(-1, 1, (1, 1, 2, 25)).astype(dtype),
        "mask": generator.uniform(0, 1, (1, SIDE, SIDE, 1)).astype(wide),
    }
    array = operands[where]
    (array[0, 0, 0] if where == "weight" else array[..., 0]).flat = special_values(array.dtype)

    def convolve(x, offset, weight, mask, backend):
        options = {"padding": padding, "precision": "highest", "backend": backend}
        return jax_dcn.deform_conv2d(x, offset, weight, mask=mask, **options)

    check_both(convolve, list(map(jnp.asarray, operands.values())), dtype, backend, tolerance)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("where", ["x", "offset", "image", "corner"])
def test_pooling(where, dtype, x64):
    wide = jnp.promote_types(dtype, jnp.float32)
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (2, SIDE, SIDE, 2)).astype(dtype)
    rois = np.tile(np.array([0, 1, 1, 3, 3], wide), (25, 1))
    offset = generator.uniform(-1, 1, (25, 1, 1, 2)).astype(wide)
    if where == "x":
        x[1, ..., 0].flat = special_values(dtype)
        rois[:, 0] = 1
    elif where == "offset":
        offset[..., 0].flat = special_values(wide)
    else:
        rois[:, 0 if where == "image" else 3] = special_values(wide)

    def pool(x, offset, backend):
        return jax_dcn.deform_psroi_pool(x, jnp.asarray(rois), offset, output_size=(1, 2), part_size=1, backend=backend)

    check_both(pool, [jnp.asarray(x), jnp.asarray(offset)], dtype)


@pytest.mark.parametrize("where", ["x", "offset", "image", "corner", "maximum of x", "maximum of corner"])
def test_alignment(where, x64):
    """With an adaptive number of points, whose number special corners make as large as floats are."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (2, SIDE, SIDE, 2))
    rois = np.tile(np.array([0, 1, 1, 3.3, 3.6]), (25, 1))
    offset = generator.uniform(-1, 1, (25, 1, 2, 2))
    if where.endswith("x"):
        x[1, ..., 0].flat = special_values("float64")
        rois[:, 0] = 1
    elif where == "offset":
        offset[..., 0, 0].flat = special_values("float64")
    else:
        rois[:, 0 if where == "image" else 3] = special_values("float64")

    def pool(x, offset, backend):
        options = {"output_size": (1, 2), "backend": backend}
        if where.startswith("maximum"):
            return jax_dcn.roi_align(x, jnp.asarray(rois), mode="max", **options)
        return jax_dcn.deform_roi_pool(x, jnp.asarray(rois), offset, **options)

    operands = [jnp.asarray(x), jnp.asarray(offset)]
    if where == "x":  # the reference has no derivative in the offset where pixels are not finite
        check_both(lambda x, backend: pool(x, operands[1], backend), operands[:1], "float64")
    else:
        check_both(pool, operands, "float64")
