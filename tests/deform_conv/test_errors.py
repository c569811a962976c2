"""Bad arguments are refused at trace time, by messages that name the argument, what it is and what it must be."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

import jax_dcn

ones = jnp.ones
GOOD = {
    "x": ones((2, 5, 6, 4)),
    "offset": ones((2, 5, 6, 36)),
    "weight": ones((3, 3, 2, 6)),
    "bias": ones(6),
    "mask": ones((2, 5, 6, 18)),
    "feature_group_count": 2,
}
ARRAYS = ("x", "offset", "weight", "bias", "mask")

# the wrong argument: the error, and the parts of its message in order
WRONG = [
    ({"x": ones((2, 5, 6, 4), int)}, TypeError, ["x must", "float32", "int32"]),
    ({"x": ones((2, 5, 6, 4), bool)}, TypeError, ["x must", "bool"]),
    ({"x": [[[1.0]]]}, TypeError, ["x must", "array", "list"]),
    ({"x": None}, TypeError, ["x must", "None"]),
    ({"x": ones((6, 4))}, ValueError, ["x must", "[..., H, W, Cin]", "(6, 4)"]),
    ({"offset": ones((2, 5, 6, 36), int)}, TypeError, ["offset must", "int32"]),
    ({"offset": None}, TypeError, ["offset must", "None"]),
    ({"offset": ones((5, 6, 36))}, ValueError, ["offset must", "(5, 6, 36)"]),
    ({"offset": ones((3, 5, 6, 36))}, ValueError, ["offset must", "(2, 5, 6, G·18)", "(3, 5, 6, 36)"]),
    ({"offset": ones((2, 5, 7, 36))}, ValueError, ["offset must", "(2, 5, 6, G·18)", "(2, 5, 7, 36)"]),
    ({"offset": ones((2, 5, 6, 35))}, ValueError, ["offset must", "G·18", "(2, 5, 6, 35)"]),
    ({"offset": ones((2, 5, 6, 0))}, ValueError, ["offset must", "G·18", "(2, 5, 6, 0)"]),
    ({"offset": ones((2, 5, 6, 54))}, ValueError, ["offset", "4 channels", "3 groups", "(2, 5, 6, 54)"]),
    ({"strides": (2, 1)}, ValueError, ["offset must", "(2, 3, 6, G·18)", "(2, 5, 6, 36)"]),
    ({"weight": ones((3, 3, 2, 6), complex)}, TypeError, ["weight must", "complex64"]),
    ({"weight": ones((3, 2, 6))}, ValueError, ["weight must", "[kh, kw, Cin/groups, Cout]", "(3, 2, 6)"]),
    ({"weight": ones((3, 3, 4, 6))}, ValueError, ["weight must", "4/2", "(2, 5, 6, 4)", "(3, 3, 4, 6)"]),
    ({"weight": ones((3, 3, 2, 5))}, ValueError, ["weight", "divisible by feature_group_count=2", "5"]),
    ({"weight": ones((0, 3, 2, 6))}, ValueError, ["weight must", "(0, 3, 2, 6)"]),
    ({"bias": ones(5)}, ValueError, ["bias must", "(6,)", "(5,)"]),
    ({"bias": ones((1, 6))}, ValueError, ["bias must", "[Cout]", "(1, 6)"]),
    ({"bias": ones(6, int)}, TypeError, ["bias must", "int32"]),
    ({"mask": ones((2, 5, 6, 9))}, ValueError, ["mask must", "(2, 5, 6, 18)", "(2, 5, 6, 9)"]),
    ({"mask": ones((1, 5, 6, 18))}, ValueError, ["mask must", "(2, 5, 6, 18)", "(1, 5, 6, 18)"]),
    ({"mask": ones((5, 6, 18))}, ValueError, ["mask must", "(5, 6, 18)"]),
    ({"mask": ones((2, 5, 6, 18), bool)}, TypeError, ["mask must", "bool"]),
    ({"strides": 0}, ValueError, ["strides must", "positive", "0"]),
    ({"strides": (1, 2, 3)}, ValueError, ["strides must", "pair", "(1, 2, 3)"]),
    ({"strides": 1.5}, TypeError, ["strides must", "1.5"]),
    ({"strides": (1, -1)}, ValueError, ["strides must", "(1, -1)"]),
    ({"kernel_dilation": 0}, ValueError, ["kernel_dilation must", "positive", "0"]),
    ({"kernel_dilation": "2"}, ValueError, ["kernel_dilation must", "'2'"]),
    ({"padding": "FULL"}, ValueError, ["padding must", "'SAME'", "'CIRCULAR'", "'FULL'"]),
    ({"padding": (1, 2, 3)}, ValueError, ["padding must", "(1, 2, 3)"]),
    ({"padding": ((1,), (1, 1))}, ValueError, ["padding must", "((1,), (1, 1))"]),
    ({"padding": 0.5}, TypeError, ["padding must", "0.5"]),
    ({"padding": None}, TypeError, ["padding must", "None"]),
    ({"feature_group_count": 0}, ValueError, ["feature_group_count must", "positive", "0"]),
    ({"feature_group_count": 1.0}, TypeError, ["feature_group_count must", "1.0"]),
    ({"feature_group_count": 3}, ValueError, ["weight must", "4/3", "feature_group_count=3"]),
    ({"data_format": "NCWH"}, ValueError, ["data_format must", "'NHWC'", "'NCHW'", "'NCWH'"]),
    ({"backend": "cuda"}, ValueError, ["backend must", "'reference'", "'cuda'"]),
    ({"deterministic": "yes"}, ValueError, ["deterministic must", "'yes'"]),
    ({"preferred_element_type": int}, TypeError, ["preferred_element_type must", "float32", "int"]),
    ({"preferred_element_type": "wide"}, TypeError, ["preferred_element_type must", "'wide'"]),
]


def saying(fragments):
    return ".*".join(map(re.escape, fragments))


def describe(value):
    return getattr(value, "shape", value) if not hasattr(value, "dtype") else f"{value.dtype}{value.shape}"


def describe_wrong(entry):
    if isinstance(entry, dict):
        return ",".join(f"{name}={describe(value)}" for name, value in entry.items())
    return "" if isinstance(entry, list) else entry.__name__


@pytest.mark.parametrize("backend", [{}, {"backend": "reference"}], ids=["kernel", "reference"])
@pytest.mark.parametrize("wrong, error, fragments", WRONG, ids=describe_wrong)
def test_deform_conv2d(wrong, error, fragments, backend):
    with pytest.raises(error, match=saying(fragments)):
        trace(jax_dcn.deform_conv2d, {**GOOD, **backend, **wrong})


def trace(function, arguments):
    """Abstractly: nothing is compiled or run."""
    traced = {name: a for name, a in arguments.items() if hasattr(a, "dtype")}
    static = {name: a for name, a in arguments.items() if name not in traced}
    return jax.eval_shape(lambda traced: functools.partial(function, **static)(**traced), traced)


def test_the_good_arguments_are_good():
    assert trace(jax_dcn.deform_conv2d, GOOD).shape == (2, 5, 6, 6)


def channels_first(name, array):
    return (
        jnp.transpose(array, (3, 2, 0, 1))
        if name == "weight"
        else array
        if name == "bias"
        else jnp.moveaxis(array, -1, 1)
    )


@pytest.mark.parametrize(
    "wrong, fragments",
    [
        ({"x": ones((5, 6))}, ["x must", "[..., Cin, H, W]", "(5, 6)"]),
        ({"weight": ones((6, 2, 3))}, ["weight must", "[Cout, Cin/groups, kh, kw]", "(6, 2, 3)"]),
        ({"weight": ones((6, 3, 3, 3))}, ["weight must", "(2, 4, 5, 6)", "(6, 3, 3, 3)"]),
        ({"offset": ones((2, 36, 5, 7))}, ["offset must", "(2, G·18, 5, 6)", "(2, 36, 5, 7)"]),
        ({"mask": ones((2, 9, 5, 6))}, ["mask must", "(2, 18, 5, 6)", "(2, 9, 5, 6)"]),
    ],
    ids=describe_wrong,
)
def test_messages_speak_of_the_users_layout(wrong, fragments):
    good = {name: channels_first(name, a) if name in ARRAYS else a for name, a in GOOD.items()}
    with pytest.raises(ValueError, match=saying(fragments)):
        trace(jax_dcn.deform_conv2d, {**good, "data_format": "NCHW", **wrong})


GRADIENTS = ["input", "offset", "mask", "weight"]


@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_explicit_gradients(name, backend):
    gradient = getattr(jax_dcn, f"deform_conv2d_{name}_grad")
    good = {**GOOD, "backend": backend, "cotangent": ones((2, 5, 6, 6))}
    del good["bias"]
    trace(gradient, good)
    for wrong, error, fragments in [
        ({"cotangent": ones((2, 5, 6, 4))}, ValueError, ["cotangent must", "(2, 5, 6, 6)", "(2, 5, 6, 4)"]),
        ({"cotangent": ones((2, 5, 6, 6), int)}, TypeError, ["cotangent must", "int32"]),
        ({"offset": ones((2, 5, 6, 35))}, ValueError, ["offset must", "(2, 5, 6, 35)"]),
        ({"mask": ones((2, 5, 6, 9))}, ValueError, ["mask must", "(2, 5, 6, 18)", "(2, 5, 6, 9)"]),
        ({"padding": "FULL"}, ValueError, ["padding must", "'FULL'"]),
    ]:
        with pytest.raises(error, match=saying(fragments)):
            trace(gradient, {**good, **wrong})


def test_a_mask_gradient_needs_a_mask():
    with pytest.raises(TypeError, match=r"mask must.*None"):
        jax_dcn.deform_conv2d_mask_grad(ones((2, 5, 6, 6)), GOOD["x"], GOOD["offset"], GOOD["weight"], None)


def test_an_unknown_keyword():
    with pytest.raises(TypeError, match="dilation"):
        jax_dcn.deform_conv2d(GOOD["x"], GOOD["offset"], GOOD["weight"], dilation=2)
