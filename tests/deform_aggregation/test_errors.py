"""What arguments may be; what they may not be is refused by messages that name the argument."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn

VALUE, LOCATIONS, WEIGHTS = jnp.zeros((2, 26, 4, 6)), jnp.zeros((2, 5, 4, 2, 3, 2)), jnp.zeros((2, 5, 4, 2, 3))
LEVELS = ((4, 5), (3, 2))
ATTENTION = {
    "value": VALUE,
    "sampling_locations": LOCATIONS,
    "attention_weights": WEIGHTS,
    "spatial_shapes": LEVELS,
}
UNEVEN = {
    "points": (1, 3),
    "sampling_locations": jnp.zeros((2, 5, 4, 4, 2)),
    "attention_weights": jnp.zeros((2, 5, 4, 4)),
}
X, OFFSET, MASK = jnp.zeros((2, 7, 5, 12)), jnp.zeros((2, 7, 5, 2 * 9 * 2)), jnp.zeros((2, 7, 5, 2 * 9))
DCNV3 = {"x": X, "offset": OFFSET, "mask": MASK, "kernel_size": 3, "padding": 1, "groups": 2}
WRONG_ATTENTION = [
    ({"value": VALUE[0, 0]}, ValueError, ["value must", "[..., S, M, D]", "(4, 6)"]),
    ({"value": VALUE.astype(int)}, TypeError, ["value must", "int32"]),
    ({"value": VALUE[:, :25]}, ValueError, ["value must", "26 pixels", "spatial_shapes", "(2, 25, 4, 6)"]),
    ({"value": [[1.0]]}, TypeError, ["value must", "array", "list"]),
    ({"sampling_locations": LOCATIONS[0]}, ValueError, ["sampling_locations must", "[..., Q, M, L, P, 2]"]),
    ({"sampling_locations": LOCATIONS[..., :1]}, ValueError, ["sampling_locations must", "(2, 5, 4, 2, 3, 2)"]),
    ({"sampling_locations": LOCATIONS[:, :, :3]}, ValueError, ["sampling_locations must", "(2, 5, 4, 2, 3, 2)"]),
    ({"sampling_locations": LOCATIONS[:1]}, ValueError, ["sampling_locations must", "(2, 5, 4, 2, 3, 2)"]),
    (
        {"sampling_locations": LOCATIONS[:, :, :, :1]},
        ValueError,
        ["sampling_locations must", "(2, 5, 4, 2, 3, 2)", "2 levels"],
    ),
    ({"sampling_locations": LOCATIONS.astype(jnp.bfloat16)}, TypeError, ["sampling_locations must", "bfloat16"]),
    (
        {"attention_weights": WEIGHTS[:, :4]},
        ValueError,
        ["attention_weights must", "(2, 5, 4, 2, 3)", "(2, 4, 4, 2, 3)"],
    ),
    ({"attention_weights": LOCATIONS}, ValueError, ["attention_weights must", "[..., Q, M, L, P]"]),
    ({"attention_weights": WEIGHTS.astype(int)}, TypeError, ["attention_weights must", "int32"]),
    ({"spatial_shapes": ()}, ValueError, ["spatial_shapes must", "()"]),
    ({"spatial_shapes": (4, 5)}, ValueError, ["spatial_shapes must", "(4, 5)"]),
    ({"spatial_shapes": ((4, 5), (3,))}, ValueError, ["spatial_shapes must", "((4, 5), (3,))"]),
    ({"spatial_shapes": ((4, 5), (3, 0))}, ValueError, ["spatial_shapes[1] must", "(3, 0)"]),
    ({"spatial_shapes": ((4, 5), (3, 2.0))}, ValueError, ["spatial_shapes[1] must", "(3, 2.0)"]),
    ({"spatial_shapes": ((1, 1),) * 33}, ValueError, ["spatial_shapes must", "32 levels", "33"]),
    ({"spatial_shapes": ((2**16, 2**15),)}, ValueError, ["spatial_shapes must", "2**31"]),
    ({"points": (1, 3)}, ValueError, ["sampling_locations must", "[..., Q, M, sum(points), 2]"]),
    (UNEVEN | {"points": (1, 2)}, ValueError, ["sampling_locations must", "(2, 5, 4, 3, 2)"]),
    (UNEVEN | {"points": (4,)}, ValueError, ["points must", "2 levels", "(4,)"]),
    (UNEVEN | {"points": 4}, ValueError, ["points must", "2 levels", "4"]),
    (UNEVEN | {"points": (0, 4)}, ValueError, ["points[0] must", "0"]),
    ({"method": "nearest"}, ValueError, ["method must", "'nearest'"]),
    ({"deterministic": 1}, ValueError, ["deterministic must", "1"]),
    ({"backend": "fused"}, ValueError, ["backend must", "'fused'"]),
]
WRONG_DCNV3 = [
    ({"x": X[0, 0]}, ValueError, ["x must", "[..., H, W, C]", "(5, 12)"]),
    ({"x": X.astype(int)}, TypeError, ["x must", "int32"]),
    ({"x": X[..., :11]}, ValueError, ["x's channels", "groups=2", "11"]),
    ({"offset": OFFSET[0]}, ValueError, ["offset must", "[..., Ho, Wo, G·K·2]"]),
    ({"offset": OFFSET[..., :34]}, ValueError, ["offset must", "(2, 7, 5, 36)", "9 taps", "(2, 7, 5, 34)"]),
    ({"offset": OFFSET[:, :6]}, ValueError, ["offset must", "(2, 7, 5, 36)", "(2, 6, 5, 36)"]),
    ({"mask": MASK[:1]}, ValueError, ["mask must", "(2, 7, 5, 18)", "(1, 7, 5, 18)"]),
    ({"mask": OFFSET}, ValueError, ["mask must", "(2, 7, 5, 18)", "(2, 7, 5, 36)"]),
    ({"mask": MASK.astype(int)}, TypeError, ["mask must", "int32"]),
    ({"remove_center": True}, ValueError, ["offset must", "8 taps"]),
    ({"remove_center": 1}, ValueError, ["remove_center must", "1"]),
    ({"remove_center": True, "kernel_size": 1}, ValueError, ["kernel_size must", "(1, 1)"]),
    ({"kernel_size": 0}, ValueError, ["kernel_size must", "0"]),
    ({"kernel_size": (2**16, 2**16)}, ValueError, ["kernel_size must", "2**31"]),
    ({"strides": (1, 0)}, ValueError, ["strides must", "(1, 0)"]),
    ({"kernel_dilation": 1.5}, TypeError, ["kernel_dilation must", "1.5"]),
    ({"kernel_dilation": 2**30}, ValueError, ["kernel_dilation must", "2**31"]),
    ({"padding": "SAME"}, ValueError, ["padding must", "int", "'SAME'"]),
    ({"padding": (1, 2, 3)}, ValueError, ["padding must", "(1, 2, 3)"]),
    ({"groups": 0}, ValueError, ["groups must", "0"]),
    ({"groups": 2.0}, TypeError, ["groups must", "2.0"]),
    ({"offset_scale": float("nan")}, ValueError, ["offset_scale must", "nan"]),
    ({"offset_scale": "1"}, TypeError, ["offset_scale must", "'1'"]),
    ({"backend": "cuda"}, ValueError, ["backend must", "'cuda'"]),
]


def saying(words):
    return ".*".join(map(re.escape, words))


@pytest.mark.parametrize("wrong, error, words", WRONG_ATTENTION)
def test_attention(wrong, error, words):
    with pytest.raises(error, match=saying(words)):
        jax.eval_shape(lambda: jax_dcn.multi_scale_deformable_attention(**ATTENTION | wrong))


@pytest.mark.parametrize("wrong, error, words", WRONG_DCNV3)
def test_dcnv3(wrong, error, words):
    with pytest.raises(error, match=saying(words)):
        jax.eval_shape(lambda: jax_dcn.dcnv3(**DCNV3 | wrong))


def test_too_many_samples():
    struct = jax.ShapeDtypeStruct
    operands = (
        struct((26, 1, 1), jnp.float32),
        struct((2**26, 1, 32, 2), jnp.float32),
        struct((2**26, 1, 32), jnp.float32),
    )
    keywords = {"spatial_shapes": LEVELS, "points": (30, 2)}
    with pytest.raises(ValueError, match=saying(["fewer than 2**31 samples", "2147483648"])):
        jax.eval_shape(functools.partial(jax_dcn.multi_scale_deformable_attention, **keywords), *operands)


@pytest.mark.parametrize(
    "function, good, name",
    [
        (jax_dcn.multi_scale_deformable_attention, ATTENTION, "spatial_shapes"),
        (jax_dcn.dcnv3, DCNV3, "offset_scale"),
        (jax_dcn.dcnv3, DCNV3, "padding"),
    ],
)
def test_static_arguments_cannot_be_traced(function, good, name):
    with pytest.raises(TypeError, match=saying([name, "must be", "known"])):
        jax.eval_shape(lambda value: function(**good | {name: value}), np.array(good.get(name, 1.0)))


@pytest.mark.parametrize(
    "levels",
    [list(map(list, LEVELS)), np.array(LEVELS), jnp.array(LEVELS), (np.array([4, 5]), (np.int8(3), jnp.int32(2)))],
)
def test_spatial_shapes_may_be_arrays(levels):
    result = jax.eval_shape(lambda: jax_dcn.multi_scale_deformable_attention(**ATTENTION | {"spatial_shapes": levels}))
    assert result.shape == (2, 5, 24)


@pytest.mark.parametrize("padding", [1, (1, 1), ((1, 1), (1, 1)), np.array([1, 1]), [[0, 2], [2, 0]]])
def test_paddings(padding):
    assert jax.eval_shape(lambda: jax_dcn.dcnv3(**DCNV3 | {"padding": padding})).shape == X.shape
