"""Special values in every operand: the results and gradients of the kernels are those of the reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from tests.helpers.deform_conv.cases import Case, Operands, compiled_pull_back
from tests.helpers.deform_conv.numpy_reference import Convolution

SIDE = 5  # of images, whose 25 pixels hold one special value each
# Each type has its own extreme values; the widest and the narrowest range are tested by default.
DTYPES = ["float16", "float64", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("bfloat16", "float32"))]


def special_values(dtype):
    """25 values: coordinates far outside, on borders and on pixels, extreme values, infinities and NaN."""
    info = jnp.finfo(dtype)
    extreme = [np.inf, -np.inf, np.nan, info.max, info.min, info.tiny, -info.tiny, info.smallest_subnormal, 2**31]
    near = [0.0, -0.0, 0.5, -0.5, 1, -1, -1.5, SIDE - 1, SIDE - 0.5, SIDE, -SIDE, 2.5, -2.5, 2**24 + 1, -(2**31), 1e-3]
    with np.errstate(over="ignore"):
        return np.array([*extreme, *near], np.float64).astype(dtype)


def ordinary(array, dtype):
    """NaN in place of values so large that their sums may overflow, which depends on the order of summation."""
    array = np.asarray(array, np.float64)
    return np.where(np.abs(array) < float(jnp.finfo(dtype).max) ** 0.5, array, np.nan)


def check_both(function, operands, dtype):
    """Compares the kernels with the reference."""

    def results(backend):
        y, pull = jax.vjp(lambda *operands: function(*operands, backend=backend), *operands)
        return y, *pull(jnp.ones_like(y))

    tolerance = 8 * float(jnp.finfo(dtype).eps)
    for result, expected in zip(*(jax.jit(results, static_argnums=0)(b) for b in (None, "reference")), strict=True):
        np.testing.assert_allclose(ordinary(result, dtype), ordinary(expected, dtype), rtol=tolerance, atol=tolerance)


OPERANDS = ["x", "offset", "mask", "weight"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where, padding", [*((operand, 0) for operand in OPERANDS), ("offset", "CIRCULAR")])
def test_convolution(where, padding, dtype, x64):
    wide = jnp.promote_types(dtype, jnp.float32)
    generator = np.random.default_rng(0)
    operands = {
        "x": generator.uniform(-1, 1, (1, SIDE, SIDE, 2)).astype(dtype),
        "offset": generator.uniform(-1, 1, (1, SIDE, SIDE, 2)).astype(wide),
        "weight": generator.uniform(0, 1, (1, 1, 2, 25)).astype(dtype),  # whose sums do not cancel
        "mask": generator.uniform(0, 1, (1, SIDE, SIDE, 1)).astype(wide),
    }
    array = operands[where]
    (array[0, 0, 0] if where == "weight" else array[..., 0]).flat = special_values(array.dtype)

    def convolve(x, offset, weight, mask, backend):
        options = {"padding": padding, "precision": "highest", "backend": backend}
        return jax_dcn.deform_conv2d(x, offset, weight, mask=mask, **options)

    check_both(convolve, list(map(jnp.asarray, operands.values())), dtype)


# With 32 channels and features in a group, processors that multiply pairs of bfloat16 do so.
FUSED_CASES = [
    Case("torus", (SIDE, SIDE), 32, 32, (2, 3), batch=(1,), convolution=Convolution(padding="CIRCULAR")),
    Case("strided", (SIDE, SIDE), 12, 40, (3, 2), 2, (1,), Convolution((2, 1), ((2, 1), (1, 1)), (1, 2))),
    Case("groups", (SIDE, SIDE), 16, 50, (2, 2), batch=(1,), convolution=Convolution((1, 1), "SAME", (1, 1), 2)),
]
FUSED_TYPES = ["bfloat16", "float32", "float16"]


@pytest.mark.platforms("cpu")
@pytest.mark.parametrize("where", [*OPERANDS, "cotangent"])
@pytest.mark.parametrize(
    "case, dtype",
    [
        pytest.param(case, dtype, marks=() if i == j else pytest.mark.thorough)
        for i, case in enumerate(FUSED_CASES)
        for j, dtype in enumerate(FUSED_TYPES)
    ],
    ids=str,
)
def test_fused_convolution(case, dtype, where):
    """The fused path, which smaller problems do not take by themselves, gives the numbers of the im2col path.

    All values are positive, so that no sum cancels. Large values, whose sums would, are only among the offsets.
    """
    generator = np.random.default_rng(0)
    shapes = {**case.operands()._asdict(), "cotangent": case.cotangent()}
    arrays = {name: generator.uniform(0.5, 1.5, array.shape).astype(dtype) for name, array in shapes.items()}
    arrays |= {name: generator.uniform(0.5, 1.5, arrays[name].shape).astype("float32") for name in ("mask", "bias")}
    arrays["weight"] /= arrays["weight"].dtype.type(8)  # so that float16 has the square of every result
    arrays["offset"] = generator.uniform(-1, 1, arrays["offset"].shape).astype("float32")
    special = special_values(arrays[where].dtype)
    if where != "offset":
        special = special[~(np.abs(ordinary(special, special.dtype)) > SIDE)]
    hit = arrays[where][0, 0, 0] if where == "weight" else arrays[where][..., 0]
    hit.flat = np.resize(special, hit.size)

    cotangent, operands = arrays.pop("cotangent"), Operands(**arrays)
    fused, im2col = (
        jax.tree.leaves(compiled_pull_back(case, path)(cotangent, operands)) for path in ("fused", "im2col")
    )
    resolution = max(float(jnp.finfo(dtype).eps), 2.0**-18)  # differences of large sums are derivatives in offset
    for result, expected in zip(fused, im2col, strict=True):
        result, expected = ordinary(result, dtype), ordinary(expected, dtype)
        np.testing.assert_allclose(result, expected, rtol=0, atol=resolution * np.nanmax(np.abs(expected), initial=0))


POOLINGS = {
    "rounded": functools.partial(jax_dcn.deform_psroi_pool, part_size=1),
    "adaptive": jax_dcn.deform_roi_pool,
    "maximum": lambda x, rois, offset, **options: jax_dcn.roi_align(x, rois, mode="max", **options),
}
SPECIAL_OPERANDS = ["x", "offset", "image", "corner"]


@pytest.mark.parametrize(
    "pooling, where, dtype",
    [
        *(("rounded", where, "float64") for where in SPECIAL_OPERANDS),
        *(pytest.param("rounded", where, "bfloat16", marks=pytest.mark.slow) for where in SPECIAL_OPERANDS),
        *(("adaptive", where, "float64") for where in SPECIAL_OPERANDS),
        *(("maximum", where, "float64") for where in ("x", "corner")),
    ],
)
def test_pooling(pooling, where, dtype, x64):
    """Special corners make the number of adaptive points as large as floats are."""
    wide = jnp.promote_types(dtype, jnp.float32)
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (2, SIDE, SIDE, 2)).astype(dtype)
    box = [0, 1, 1, 3, 3] if pooling == "rounded" else [0, 1, 1, 3.3, 3.6]
    rois = np.tile(np.array(box, wide), (25, 1))
    offset = generator.uniform(-1, 1, (25, 1, 1 if pooling == "rounded" else 2, 2)).astype(wide)
    if where == "x":
        x[1, ..., 0].flat = special_values(dtype)
        rois[:, 0] = 1
    elif where == "offset":
        offset[..., 0, 0].flat = special_values(wide)
    else:
        rois[:, 0 if where == "image" else 3] = special_values(wide)

    def pool(x, offset, backend):
        return POOLINGS[pooling](x, jnp.asarray(rois), offset, output_size=(1, 2), backend=backend)

    operands = [jnp.asarray(x), jnp.asarray(offset)]
    if where == "x" and pooling == "adaptive":  # the reference has no derivative in the offset at infinite pixels
        check_both(lambda x, backend: pool(x, operands[1], backend), operands[:1], dtype)
    else:
        check_both(pool, operands, dtype)
