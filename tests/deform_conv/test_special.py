"""Special values in every operand of the fused convolution: results and gradients are those of the im2col path."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.deform_conv.cases import Case, Operands
from tests.helpers.deform_conv.numpy_reference import Convolution
from tests.helpers.operators import compiled_pull_back

SIDE = 5  # of images, whose 25 pixels hold one special value each


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


OPERANDS = ["x", "offset", "mask", "weight"]


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
