"""What arguments may be; what they may not be is refused by messages that name the argument."""

import dataclasses
import re
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from tests.helpers.roi_pool.cases import POOLING, operands

X, ROIS, OFFSET = (jnp.asarray(a, jnp.float32) for a in operands())
GOOD = {"x": X, "rois": ROIS, "offset": OFFSET} | dataclasses.asdict(POOLING)
WRONG = [
    ({"x": X[0]}, ValueError, ["x must", "[..., N, H, W, C]", "(9, 8, 36)"]),
    ({"x": X[..., :35]}, ValueError, ["x's channels", "6 cells", "35"]),
    ({"x": X.astype(int)}, TypeError, ["x must", "int32"]),
    ({"rois": ROIS[:, :4]}, ValueError, ["rois must", "(R, 5)", "(6, 4)"]),
    ({"rois": ROIS[None]}, ValueError, ["rois must", "[..., R, 5]", "(1, 6, 5)"]),
    ({"rois": [[0, 1, 1, 2, 2]]}, TypeError, ["rois must", "array", "list"]),
    ({"rois": ROIS > 0}, TypeError, ["rois must", "float32, float64 or an integer one", "bool"]),
    ({"rois": ROIS.astype(jnp.bfloat16)}, TypeError, ["rois must", "float32", "bfloat16", "pass float32"]),
    ({"rois": ROIS.astype(jnp.float16)}, TypeError, ["rois must", "float32", "float16", "pass float32"]),
    ({"offset": OFFSET[:5]}, ValueError, ["offset must", "(6, 2, 3, 2·classes)", "(5, 2, 3, 6)"]),
    ({"offset": OFFSET[..., :5]}, ValueError, ["offset must", "2·classes", "(6, 2, 3, 5)"]),
    ({"offset": jnp.zeros((6, 2, 3, 8))}, ValueError, ["offset", "6 features", "4 classes"]),
    ({"offset": OFFSET.astype(int)}, TypeError, ["offset must", "int32"]),
    ({"part_size": 3}, ValueError, ["offset must", "part_size=(3, 3)", "(6, 2, 3, 6)"]),
    ({"output_size": 0}, ValueError, ["output_size must", "0"]),
    ({"output_size": True}, TypeError, ["output_size must", "True"]),
    ({"output_size": (7, 2.0)}, ValueError, ["output_size must", "(7, 2.0)"]),
    ({"output_size": np.array(7.0)}, ValueError, ["output_size must", "array(7.)"]),
    ({"output_size": np.array([7, 7, 7])}, ValueError, ["output_size must", "[7, 7, 7]"]),
    ({"output_size": jnp.array([7, 7, 7])}, ValueError, ["output_size must", "[7, 7, 7]"]),
    ({"output_size": jnp.array([7.0, 7.0])}, ValueError, ["output_size must", "[7., 7.]"]),
    ({"group_size": 1.5}, TypeError, ["group_size must", "1.5"]),
    ({"sample_per_part": -1}, ValueError, ["sample_per_part must", "-1"]),
    ({"sample_per_part": 2**31}, ValueError, ["sample_per_part must", "less than 2**31"]),
    ({"spatial_scale": "1"}, TypeError, ["spatial_scale must", "'1'"]),
    ({"spatial_scale": True}, TypeError, ["spatial_scale must", "True"]),
    ({"spatial_scale": None}, TypeError, ["spatial_scale must", "None"]),
    ({"spatial_scale": 1j}, TypeError, ["spatial_scale must", "1j"]),
    ({"spatial_scale": np.ones(1)}, TypeError, ["spatial_scale must", "array([1.])"]),
    ({"trans_std": float("nan")}, ValueError, ["trans_std must", "nan"]),
    ({"trans_std": jnp.array(jnp.inf)}, ValueError, ["trans_std must", "inf"]),
    ({"data_format": "NWHC"}, ValueError, ["data_format must", "'NWHC'"]),
    ({"backend": "cpu"}, ValueError, ["backend must", "'cpu'"]),
]


def saying(words):
    return ".*".join(map(re.escape, words))


@pytest.mark.parametrize("wrong, error, words", WRONG)
def test_errors_name_the_argument(wrong, error, words):
    with pytest.raises(error, match=saying(words)):
        jax.eval_shape(lambda: jax_dcn.deform_psroi_pool(**GOOD | wrong))


@pytest.mark.parametrize("name, value", [("spatial_scale", 0.5), ("trans_std", 0.5), ("output_size", 5)])
def test_static_arguments_cannot_be_traced(name, value):
    with pytest.raises(TypeError, match=saying([name, "must be", "known when the function is traced"])):
        jax.eval_shape(lambda value: jax_dcn.deform_psroi_pool(**GOOD | {name: value}), value)


def result_of(**changed):
    return jax_dcn.deform_psroi_pool(**GOOD | changed)


@pytest.mark.parametrize("name", ["spatial_scale", "trans_std"])
@pytest.mark.parametrize(
    "value", [Fraction(1, 2), np.float32(0.5), np.float16(0.5), np.array(0.5), jnp.float32(0.5), jnp.bfloat16(0.5)]
)
def test_real_numbers(name, value):
    np.testing.assert_array_equal(result_of(**{name: value}), result_of(**{name: 0.5}))


@pytest.mark.parametrize("name", ["output_size", "sample_per_part"])
@pytest.mark.parametrize(
    "two",
    [
        2,
        np.uint8(2),
        np.array(2),
        jnp.int32(2),
        [2, 2],
        np.array([2, 2]),
        jnp.array([2, 2]),
        (np.int8(2), jnp.int32(2)),
    ],
)
def test_whole_numbers(name, two):
    np.testing.assert_array_equal(result_of(**{name: two}), result_of(**{name: (2, 2)}))
