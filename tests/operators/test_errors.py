"""What arguments may be; what they may not be is refused, while tracing, by messages that name the argument.

A message says which argument it is about, what it must be and what it is.
"""

import functools
import inspect
import operator
import re
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn.quantize
from jax_dcn._operators.aggregation.arguments import MAX_LEVELS, MAX_TAPS
from tests.helpers.calls import CALLS, LEVELS, POOLING
from tests.helpers.deform_conv.cases import Operands, to_channels_first
from tests.helpers.pages import ROOT

ones, zeros, struct = jnp.ones, jnp.zeros, jax.ShapeDtypeStruct
# The wrong arguments: the error, and the parts of its message in order.
WRONG_CONVOLUTION = [
    ({"x": ones((2, 5, 6, 4), int)}, TypeError, ["x must", "float32", "int32"]),
    ({"x": [[[1.0]]]}, TypeError, ["x must", "array", "[[[...]]]", "list"]),
    ({"x": np.ones((2, 5, 6, 4), ">f4")}, TypeError, ["x must", ">f4", "byte order"]),
    ({"x": np.ones((2, 5, 6, 4), np.longdouble)}, TypeError, ["x must", "float128"]),
    ({"x": np.ones((2, 5, 6, 4), object)}, TypeError, ["x must", "object"]),
    ({"x": np.ma.ones((2, 5, 6, 4))}, TypeError, ["x must", "filled"]),
    ({"x": np.ones((2, 5, 6, 4), [("a", "f4")])}, TypeError, ["x must", "('a', '<f4')"]),
    ({"x": ones((6, 4))}, ValueError, ["x must", "[..., H, W, Cin]", "(6, 4)"]),
    ({"offset": None}, ValueError, ["mask must be None where offset is", "(2, 5, 6, 18)"]),
    ({"offset": None, "mask": None, "backend": "im2col"}, ValueError, ["backend must", "offset is None", "im2col"]),
    ({"offset": ones((3, 5, 6, 36))}, ValueError, ["offset must", "(2, 5, 6, G·18)", "(3, 5, 6, 36)"]),
    ({"offset": ones((2, 5, 6, 35))}, ValueError, ["offset must", "G·18", "(2, 5, 6, 35)"]),
    ({"offset": ones((2, 5, 6, 0))}, ValueError, ["offset must", "G·18", "(2, 5, 6, 0)"]),
    ({"offset": ones((2, 5, 6, 54))}, ValueError, ["offset", "4 channels", "3 groups", "(2, 5, 6, 54)"]),
    ({"strides": (2, 1)}, ValueError, ["offset must", "(2, 3, 6, G·18)", "(2, 5, 6, 36)"]),
    ({"weight": ones((3, 2, 6))}, ValueError, ["weight must", "[kh, kw, Cin/groups, Cout]", "(3, 2, 6)"]),
    ({"weight": ones((3, 3, 4, 6))}, ValueError, ["weight must", "4/2", "(2, 5, 6, 4)", "(3, 3, 4, 6)"]),
    ({"weight": ones((3, 3, 2, 5))}, ValueError, ["weight", "divisible by feature_group_count=2", "5"]),
    ({"weight": ones((0, 3, 2, 6))}, ValueError, ["weight must", "(0, 3, 2, 6)"]),
    ({"bias": ones(5)}, ValueError, ["bias must", "(6,)", "(5,)"]),
    ({"mask": ones((2, 5, 6, 9))}, ValueError, ["mask must", "(2, 5, 6, 18)", "(2, 5, 6, 9)"]),
    ({"strides": 0}, ValueError, ["strides must", "positive", "0"]),
    ({"strides": (1, 2, 3)}, ValueError, ["strides must", "pair", "(1, 2, 3)"]),
    ({"padding": "FULL"}, ValueError, ["padding must", "'SAME'", "'CIRCULAR'", "'FULL'"]),
    ({"padding": (1, 2, 3)}, ValueError, ["padding must", "(1, 2, 3)"]),
    ({"padding": ((1,), (1, 1))}, ValueError, ["padding must", "((1,), (1, 1))"]),
    ({"padding": None}, TypeError, ["padding must", "None"]),
    ({"feature_group_count": 3}, ValueError, ["weight must", "4/3", "feature_group_count=3"]),
    ({"data_format": "NCWH"}, ValueError, ["data_format must", "'NHWC'", "'NCHW'", "'NCWH'"]),
    ({"backend": "cuda"}, ValueError, ["backend must", "'reference'", "'cuda'"]),
]
ATTENTION = CALLS["multi_scale_deformable_attention"]
VALUE, LOCATIONS, WEIGHTS, _ = ATTENTION.values()
TAPS = zeros((2, 5, 4, 4, 2))
UNEVEN = {"points": (1, 3), "sampling_locations": TAPS, "attention_weights": TAPS[..., 0]}
WRONG_ATTENTION = [
    ({"value": VALUE[0, 0]}, ValueError, ["value must", "[..., S, M, D]", "(4, 6)"]),
    ({"value": VALUE[:, :25]}, ValueError, ["value must", "26 pixels", "spatial_shapes", "(2, 25, 4, 6)"]),
    ({"sampling_locations": LOCATIONS[0]}, ValueError, ["sampling_locations must", "[..., Q, M, L, P, 2]"]),
    ({"sampling_locations": LOCATIONS[:, :, :3]}, ValueError, ["sampling_locations must", "(2, 5, 4, 2, 3, 2)"]),
    ({"sampling_locations": LOCATIONS[:, :, :, :1]}, ValueError, ["sampling_locations must", "3, 2)", "2 levels"]),
    ({"sampling_locations": LOCATIONS.astype(jnp.bfloat16)}, TypeError, ["sampling_locations must", "bfloat16"]),
    ({"attention_weights": WEIGHTS[:, :4]}, ValueError, ["attention_weights must", "(2, 5, 4, 2, 3)", "(2, 4, 4, 2"]),
    ({"attention_weights": LOCATIONS}, ValueError, ["attention_weights must", "[..., Q, M, L, P]"]),
    ({"spatial_shapes": ()}, ValueError, ["spatial_shapes must", "()"]),
    ({"spatial_shapes": (4, 5)}, ValueError, ["spatial_shapes must", "(4, 5)"]),
    ({"spatial_shapes": ((4, 5), (3,))}, ValueError, ["spatial_shapes must", "((4, 5), (3,))"]),
    ({"spatial_shapes": ((4, 5), (3, 0))}, ValueError, ["spatial_shapes[1] must", "(3, 0)"]),
    ({"spatial_shapes": ((1, 1),) * 33}, ValueError, ["spatial_shapes must", "32 levels", "33"]),
    ({"spatial_shapes": ((2**16, 2**15),)}, ValueError, ["spatial_shapes must", "2**31"]),
    ({"points": (1, 3)}, ValueError, ["sampling_locations must", "[..., Q, M, sum(points), 2]"]),
    (UNEVEN | {"points": (1, 2)}, ValueError, ["sampling_locations must", "(2, 5, 4, 3, 2)"]),
    (UNEVEN | {"points": (4,)}, ValueError, ["points must", "2 levels", "(4,)"]),
    (UNEVEN | {"points": (0, 4)}, ValueError, ["points[0] must", "0"]),
]
X3, OFFSET3, MASK3 = (CALLS["dcnv3"][name] for name in ("x", "offset", "mask"))
WRONG_DCNV3 = [
    ({"x": X3[0, 0]}, ValueError, ["x must", "[..., H, W, C]", "(5, 12)"]),
    ({"x": X3[..., :11]}, ValueError, ["x's channels", "groups=2", "11"]),
    ({"offset": OFFSET3[0]}, ValueError, ["offset must", "[..., Ho, Wo, G·K·2]"]),
    ({"offset": OFFSET3[..., :34]}, ValueError, ["offset must", "(2, 7, 5, 36)", "9 taps", "(2, 7, 5, 34)"]),
    ({"mask": MASK3[:1]}, ValueError, ["mask must", "(2, 7, 5, 18)", "(1, 7, 5, 18)"]),
    ({"remove_center": True}, ValueError, ["offset must", "8 taps"]),
    ({"remove_center": True, "kernel_size": 1}, ValueError, ["kernel_size must", "(1, 1)"]),
    ({"kernel_size": (2**16, 2**16)}, ValueError, ["kernel_size must", "16777216"]),
    ({"kernel_dilation": 2**30}, ValueError, ["kernel_dilation must", "2**31"]),
    ({"padding": "SAME"}, ValueError, ["padding must", "int", "'SAME'"]),
    ({"padding": (1, 2, 3)}, ValueError, ["padding must", "(1, 2, 3)"]),
]

X, ROIS, OFFSET = POOLING.values()
WRONG_POOLING = [
    ({"x": X[0]}, ValueError, ["x must", "[..., N, H, W, C]", "(9, 8, 36)"]),
    ({"x": X[..., :35]}, ValueError, ["x's channels", "6 cells", "35"]),
    ({"rois": ROIS[:, :4]}, ValueError, ["rois must", "(R, 5)", "(6, 4)"]),
    ({"rois": ROIS[None]}, ValueError, ["rois must", "[..., R, 5]", "(1, 6, 5)"]),
    ({"rois": ROIS > 0}, TypeError, ["rois must", "float32, float64 or an integer one", "bool"]),
    ({"rois": ROIS.astype(jnp.bfloat16)}, TypeError, ["rois must", "float32", "bfloat16", "pass float32"]),
    ({"offset": OFFSET[:5]}, ValueError, ["offset must", "(6, 2, 3, 2·classes)", "(5, 2, 3, 6)"]),
    ({"offset": OFFSET[..., :5]}, ValueError, ["offset must", "2·classes", "(6, 2, 3, 5)"]),
    ({"offset": jnp.zeros((6, 2, 3, 8))}, ValueError, ["offset", "6 features", "4 classes"]),
    ({"part_size": 3}, ValueError, ["offset must", "part_size=(3, 3)", "(6, 2, 3, 6)"]),
    ({"output_size": True}, TypeError, ["output_size must", "True"]),
    ({"output_size": np.array(7.0)}, ValueError, ["output_size must", "array(7.)"]),
    ({"output_size": jnp.array([7, 7, 7])}, ValueError, ["output_size must", "[7, 7, 7]"]),
    ({"sample_per_part": 2**31}, ValueError, ["sample_per_part must", "less than 2**31"]),
    ({"spatial_scale": True}, TypeError, ["spatial_scale must", "True"]),
    ({"spatial_scale": 0}, ValueError, ["spatial_scale must be a positive number", "0"]),
    ({"spatial_scale": 1e40}, ValueError, ["spatial_scale must be a positive number", "1e+40"]),
    ({"spatial_scale": 1j}, TypeError, ["spatial_scale must", "1j"]),
    ({"trans_std": jnp.array(jnp.inf)}, ValueError, ["trans_std must", "inf"]),
]

WRONG_ALIGN = [
    ("roi_align", {"sampling_ratio": -1}, ValueError, ["sampling_ratio must be a non-negative int", "-1"]),
    ("roi_align", {"x": zeros((5, 6, 12))}, ValueError, ["x must", "[..., N, H, W, C]"]),
    ("ps_roi_align", {"output_size": 5}, ValueError, ["x's channels", "25 cells of output_size=(5, 5), got 12"]),
    ("deform_roi_pool", {"offset": zeros((3, 2, 2, 4))}, ValueError, ["offset must", "(3, 2, 2, 2) ", "output"]),
    ("deform_roi_pool", {"offset": zeros((3, 2, 2))}, ValueError, ["offset must", "[..., R, part, part, 2]"]),
]
# The messages about a gradient's operands are those about the operator's.
WRONG_GRADIENT = [
    ({"cotangent": ones((2, 5, 6, 4))}, ValueError, ["cotangent must", "(2, 5, 6, 6)", "(2, 5, 6, 4)"]),
    ({"cotangent": ones((2, 5, 6, 6), int)}, TypeError, ["cotangent must", "int32"]),
    ({"mask": ones((2, 5, 6, 9))}, ValueError, ["mask must", "(2, 5, 6, 18)", "(2, 5, 6, 9)"]),
]
IMAGES, POINTS = CALLS["grid_sample"].values()
WRONG_GRID = [
    ({"x": IMAGES[0, 0]}, ValueError, ["x must", "[..., H, W, C]", "(6, 3)"]),
    ({"grid": POINTS[..., :1]}, ValueError, ["grid must", "2 or 3 coordinates", "(2, 7, 1)"]),
    ({"grid": zeros((3, 7, 2))}, ValueError, ["grid must", "leading dimensions (2,) of x, or 1", "(3, 7, 2)"]),
    ({"x": IMAGES[None]}, ValueError, ["grid must", "leading dimensions (1, 2) of x, or 1", "points", "(2, 7, 2)"]),
    ({"grid": POINTS[0, 0]}, ValueError, ["grid must", "those of the points", "(2,)"]),
    ({"grid": POINTS.astype(jnp.bfloat16)}, TypeError, ["grid must", "bfloat16", "grid.astype('float32')"]),
    ({"method": "linear"}, ValueError, ["method must", "'bilinear'", "'linear'"]),
    ({"method": "bicubic", "x": zeros((2, 4, 5, 6, 3)), "grid": zeros((2, 7, 3))}, ValueError, ["method", "'bicubic'"]),
    ({"data_format": "NDHWC"}, ValueError, ["data_format must", "2 axes", "'NDHWC'"]),
]
WRONG_RESIZE = [
    ({"x": IMAGES[0, 0]}, ValueError, ["x must", "[..., H, W, C]", "(6, 3)"]),
    ({"x": IMAGES[0, 0], "data_format": "NCHW"}, ValueError, ["x must", "[..., C, H, W]", "(6, 3)"]),
    ({"size": (7, 0)}, ValueError, ["size must", "positive", "(7, 0)"]),
    ({"method": "nearest"}, ValueError, ["method must", "'bicubic'", "'nearest'"]),
    ({"data_format": "NDHWC"}, ValueError, ["data_format must", "'NCHW'", "'NDHWC'"]),
]
WRONG_MAP = [
    ({"input": ones((1, 5, 6, 7))}, ValueError, ["coordinates must", "each axis of input", "2", "(1, 5, 6, 7)"]),
    ({"coordinates": zeros((4, 3)), "input": ones((2, 2, 2, 2))}, ValueError, ["coordinates must", "at most 3", "4"]),
    ({"coordinates": [zeros(3), zeros(3, jnp.float16)]}, TypeError, ["coordinates[1] must", "float16"]),
    ({"batch_dims": 1}, ValueError, ["coordinates must", "batch_dims=1", "2", "(5, 6)"]),
    ({"batch_dims": 1, "input": ones((2, 5, 6))}, ValueError, ["coordinates must", "(2,) of input, or 1", "(3,)"]),
    ({"batch_dims": 2, "input": ones((1, 2, 5, 6))}, ValueError, ["coordinates must", "(1, 2) of input", "(3,)"]),
    ({"mode": "edge"}, ValueError, ["mode must", "'mirror'", "'edge'"]),
    ({"cval": ones(2)}, ValueError, ["cval must", "without dimensions", "(2,)"]),
    ({"cval": 256, "input": zeros((5, 6), jnp.uint8)}, ValueError, ["cval must be from 0 to 255", "uint8", "256"]),
    ({"cval": jnp.nan, "input": zeros((5, 6), int)}, ValueError, ["cval must be from", "int32", "nan"]),
]
WRONG_FILTER = [
    ({"order": 6}, ValueError, ["order must", "0, 1", "6"]),
    ({"mode": "grid-wrap"}, ValueError, ["mode must be 'wrap'", "'grid-wrap'"]),
    ({"axes": (0, 2)}, ValueError, ["axes must", "from -2 to 1", "(0, 2)"]),
    ({"axes": (0, -2)}, ValueError, ["axes must be different", "(0, -2)"]),
    ({"input": zeros((0, 4))}, ValueError, ["input must have pixels", "order=3", "(0, 4)"]),
]
WRONG_ASSIGNMENT = [
    ({"cost": zeros(3)}, ValueError, ["cost must have shape [..., N, M]", "(3,)"]),
    ({"cost": zeros((2, 2), bool)}, TypeError, ["cost must be of type float16", "bool"]),
]


CONVOLUTION = CALLS["deform_conv2d"]
FIRST = Operands(**{name: CONVOLUTION[name] for name in Operands._fields})
NCHW = to_channels_first(FIRST)._asdict() | {"data_format": "NCHW"}
WRONG_NCHW = [
    ({"x": ones((5, 6))}, ValueError, ["x must", "[..., Cin, H, W]", "(5, 6)"]),
    ({"weight": ones((6, 2, 3))}, ValueError, ["weight must", "[Cout, Cin/groups, kh, kw]", "(6, 2, 3)"]),
    ({"weight": ones((6, 3, 3, 3))}, ValueError, ["weight must", "(2, 4, 5, 6)", "(6, 3, 3, 3)"]),
    ({"offset": ones((2, 36, 5, 7))}, ValueError, ["offset must", "(2, G·18, 5, 6)", "(2, 36, 5, 7)"]),
    ({"mask": ones((2, 9, 5, 6))}, ValueError, ["mask must", "(2, 18, 5, 6)", "(2, 9, 5, 6)"]),
]
WRONG_SIGNALS = [
    ({"x": ones((4,))}, ValueError, ["x must", "[..., W, Cin]", "(4,)"]),
    ({"x": ones((2, 9, 4, 1))}, ValueError, ["offset must", "[..., Wo, G·K·1]", "(2, 9, 4, 1)", "(2, 9, 6)"]),
    ({"weight": ones((3, 3, 4, 6))}, ValueError, ["weight must", "[kw, Cin/groups, Cout]", "(3, 3, 4, 6)"]),
    ({"offset": ones((2, 9, 4))}, ValueError, ["offset must", "(2, 9, G·3)", "a 3-tap kernel", "(2, 9, 4)"]),
    ({"mask": ones((2, 9, 3))}, ValueError, ["mask must", "(2, 9, 6)", "as many channels as offset", "(2, 9, 3)"]),
    ({"strides": (1, 1)}, ValueError, ["strides must", "a tuple of one", "(1, 1)"]),
    ({"padding": (1, 1)}, ValueError, ["padding must", "((left, right),)", "(1, 1)"]),
    ({"data_format": "NHWC"}, ValueError, ["data_format must", "'NWC'", "'NHWC'"]),
]
WRONG_VOLUMES = [
    ({"x": ones((4, 5, 4))}, ValueError, ["x must", "[..., D, H, W, Cin]", "(4, 5, 4)"]),
    ({"weight": ones((3, 3, 4, 6))}, ValueError, ["weight must", "[kd, kh, kw, Cin/groups, Cout]", "(3, 3, 4, 6)"]),
    ({"offset": ones((2, 3, 4, 5, 12))}, ValueError, ["offset must", "(2, 3, 4, 5, G·18)", "a 1x2x3", "5, 12)"]),
    ({"mask": ones((2, 3, 4, 5, 6))}, ValueError, ["mask must", "(2, 3, 4, 5, 12)", "a third of the", "4, 5, 6)"]),
    ({"strides": (1, 1)}, ValueError, ["strides must", "three of them", "(1, 1)"]),
    ({"padding": (1, 1)}, ValueError, ["padding must", "((front, back), (top, bottom), (left, right))", "(1, 1)"]),
    ({"data_format": "NCHW"}, ValueError, ["data_format must", "'NCDHW'", "'NCHW'"]),
]
WRONG_OTHERS = [
    ("nms", {"boxes": zeros((5, 3))}, ValueError, ["boxes must", "[..., N, 4]", "(5, 3)"]),
    ("nms", {"boxes": zeros((5, 4), "float16")}, TypeError, ["boxes must", "float32", "pass float32"]),
    ("nms", {"scores": zeros((2, 5))}, ValueError, ["scores must", "(5,)", "one per box"]),
    ("nms", {"scores": zeros(5, int)}, TypeError, ["scores must", "float16"]),
    ("nms", {"iou_threshold": 1.5}, ValueError, ["iou_threshold must", "from 0 to 1", "1.5"]),
    ("nms", {"iou_threshold": float("nan")}, ValueError, ["iou_threshold must", "finite", "nan"]),
    ("nms", {"classes": zeros(5)}, TypeError, ["classes must", "integer", "float32"]),
    ("nms", {"classes": zeros(4, int)}, ValueError, ["classes must", "(5,)", "(4,)"]),
    ("fpn_levels", {"boxes": zeros((2, 5))}, ValueError, ["boxes must", "[..., 4]", "(2, 5)"]),
    ("fpn_levels", {"canonical_size": 0}, ValueError, ["canonical_size must", "positive", "0"]),
    ("fpn_levels", {"min_level": "2"}, TypeError, ["min_level must", "finite", "'2'"]),
    ("find_peaks", {"scores": zeros(5)}, ValueError, ["scores must", "[..., H, W]", "(5,)"]),
    ("find_peaks", {"scores": zeros((5, 5), int)}, TypeError, ["scores must", "float16"]),
    ("find_peaks", {"radius": 1.5}, TypeError, ["radius must", "positive", "1.5"]),
    ("find_peaks", {"rounds": -1}, ValueError, ["rounds must", "non-negative", "-1"]),
    ("find_peaks", {"border": (1, 2)}, ValueError, ["border must", "non-negative", "(1, 2)"]),
    ("find_peaks", {"min_score": float("nan")}, ValueError, ["min_score must", "finite", "nan"]),
    ("offset_statistics", {"offset": zeros((4, 4, 17))}, ValueError, ["offset must", "G·18", "17)"]),
    ("offset_statistics", {"strides": 2}, ValueError, ["offset must", "(..., 2, 2, G·18)"]),
    ("as_deform_conv", {"mask": zeros((5, 5, 8))}, ValueError, ["offset and mask must", "K=9"]),
    ("as_deform_conv", {"remove_center": True}, ValueError, ["offset and mask must", "K=8"]),
]
WRONG_POWERS = [
    ({"w": ones(3, int)}, TypeError, ["w must", "float16", "int32"]),
    ({"w": ones(3), "min_exponent": 2}, ValueError, ["min_exponent=2", "max_exponent=0"]),
    ({"w": ones(3), "max_exponent": 128}, ValueError, ["max_exponent < 128", "float32"]),
]
GRADIENTS = [name for name in CALLS if name.endswith("_grad")]
# The name of a function, and a row of the tables above.
WRONG = [
    *WRONG_OTHERS,
    *(("deform_conv1d", *row) for row in WRONG_SIGNALS),
    *(("deform_conv3d", *row) for row in WRONG_VOLUMES),
    *(("deform_conv2d", *row) for row in WRONG_CONVOLUTION),
    *(("deform_conv2d", NCHW | wrong, *row) for wrong, *row in WRONG_NCHW),
    *((name, *row) for name in GRADIENTS for row in WRONG_GRADIENT),
    ("deform_conv2d_mask_grad", {"mask": None}, TypeError, ["mask must", "None"]),
    *(("multi_scale_deformable_attention", *row) for row in WRONG_ATTENTION),
    *(("dcnv3", *row) for row in WRONG_DCNV3),
    *(("deform_psroi_pool", *row) for row in WRONG_POOLING),
    *WRONG_ALIGN,
    *(("grid_sample", *row) for row in WRONG_GRID),
    *(("resize", *row) for row in WRONG_RESIZE),
    *(("map_coordinates", *row) for row in WRONG_MAP),
    *(("spline_filter", *row) for row in WRONG_FILTER),
    *(("linear_sum_assignment", *row) for row in WRONG_ASSIGNMENT),
    *(("quantize.power_of_two", *row) for row in WRONG_POWERS),
]


def saying(words):
    return ".*".join(map(re.escape, words))


def trace(name, **changes):
    """Abstractly: nothing is compiled or run."""
    function = operator.attrgetter(name)(jax_dcn)
    return jax.eval_shape(lambda: function(**CALLS.get(name, {}) | changes))


IDS = [f"{name}-{','.join(wrong)}-{k}" for k, (name, wrong, *_) in enumerate(WRONG)]


@pytest.mark.parametrize("name, wrong, error, words", WRONG, ids=IDS)
def test_errors_name_the_argument(name, wrong, error, words):
    with pytest.raises(error, match=saying(words)):
        trace(name, **wrong)


# A wrong value of each argument that has the same check in every function that takes it.
BAD = dict.fromkeys(("backend", "data_format", "padding", "method", "mode", "padding_mode", "offset_scale"), "other")
BAD |= dict.fromkeys(("deterministic", "aligned", "align_corners", "remove_center", "prefilter", "maximize"), 1)
BAD |= dict.fromkeys(("strides", "kernel_dilation", "output_size", "size", "group_size", "sample_per_part"), 0)
BAD |= dict.fromkeys(("feature_group_count", "groups", "max_outputs", "num_levels", "count", "spatial_scale"), 0)
BAD |= dict.fromkeys(("sampling_ratio", "batch_dims"), -1) | dict.fromkeys(("trans_std", "gamma"), np.nan)
BAD |= dict.fromkeys(("preferred_element_type", "kernel_size", "order"), 1.5)
BAD |= dict.fromkeys(
    ("x", "value", "input", "offset", "mask", "weight", "rois", "grid", "boxes", "scores", "cost"), (1.0,)
)


def options_of(name):
    """The names of a function's arguments; the gradients of the convolution pass its own on."""
    names = inspect.signature(getattr(jax_dcn, name)).parameters
    return [*names, *(options_of("deform_conv2d") if "options" in names else [])]


@pytest.mark.parametrize("name, argument", [(name, one) for name in CALLS for one in options_of(name) if one in BAD])
def test_wrong_values_of_shared_arguments(name, argument):
    with pytest.raises((TypeError, ValueError), match=f"{argument} must "):
        trace(name, **{argument: BAD[argument]})


def test_the_good_arguments_are_good():
    """tests/test_public_functions.py calls all other functions with theirs."""
    assert trace("deform_conv2d", **NCHW).shape == (2, 6, 5, 6)
    assert trace("multi_scale_deformable_attention", **UNEVEN).shape == (2, 5, 24)


@pytest.mark.parametrize(
    "name, argument, value",
    [
        ("multi_scale_deformable_attention", "spatial_shapes", np.array(LEVELS)),
        ("dcnv3", "padding", 1),
        ("deform_psroi_pool", "spatial_scale", 0.5),
        ("deform_psroi_pool", "output_size", 5),
    ],
)
def test_static_arguments_cannot_be_traced(name, argument, value):
    with pytest.raises(TypeError, match=saying([argument, "must be", "known when the function is traced"])):
        jax.eval_shape(lambda value: trace(name, **{argument: value}), value)


def test_limits_are_those_of_the_kernels():
    header = (ROOT / "lib/aggregation/geometry.h").read_text()
    assert f"kMaxLevels = {MAX_LEVELS};" in header
    assert f"kMaxTaps = int64_t{{1}} << {MAX_TAPS.bit_length() - 1};" in header


@pytest.mark.parametrize(
    "shape, words",
    [
        ((2**16, 2**15, 1), ["fewer than 2**31 pixels", "(65536, 32768, 1)"]),
        ((2**29, 1, 1), ["fewer than 2**29 pixels along each axis", "(536870912, 1, 1)"]),
        ((1, 1, 2**29), ["channels of a pixel of x must", "2**31 bytes", "2147483648"]),
    ],
    ids=["pixels", "rows", "channels"],
)
def test_images_that_are_too_large_to_sample(shape, words):
    with pytest.raises(ValueError, match=saying(words)):
        jax.eval_shape(jax_dcn.grid_sample, struct(shape, jnp.float32), struct((7, 2), jnp.float32))


@pytest.mark.parametrize(
    "taps, points, words",
    [
        ((2**26, 1, 32), (30, 2), ["fewer than 2**31 samples", "2147483648"]),
        ((1, 1, 2, 2**24), None, ["at most 16777216 taps", "33554432"]),
    ],
    ids=["samples", "taps"],
)
def test_too_many(taps, points, words):
    operands = struct((26, 1, 1), jnp.float32), struct((*taps, 2), jnp.float32), struct(taps, jnp.float32)
    with pytest.raises(ValueError, match=saying(words)):
        jax.eval_shape(
            functools.partial(jax_dcn.multi_scale_deformable_attention, spatial_shapes=LEVELS, points=points), *operands
        )


@pytest.mark.parametrize(
    "levels",
    [
        list(map(list, LEVELS)),
        jnp.array(LEVELS),
        (np.array([4, 5]), (np.int8(3), jnp.int32(2))),
        [jnp.array(size) for size in LEVELS],
    ],
)
def test_spatial_shapes_may_be_arrays(levels):
    changes = UNEVEN | {"points": np.array([1, 3]), "spatial_shapes": levels}
    assert trace("multi_scale_deformable_attention", **changes).shape == (2, 5, 24)


@pytest.mark.parametrize("padding", [1, (1, 1), ((1, 1), (1, 1)), np.array([1, 1]), [[0, 2], [2, 0]]])
def test_paddings(padding):
    assert trace("dcnv3", padding=padding).shape == X3.shape


@pytest.mark.parametrize("name", ["spatial_scale", "trans_std"])
def test_real_numbers(name):
    half = jax_dcn.deform_psroi_pool(**CALLS["deform_psroi_pool"] | {name: 0.5})
    for value in (Fraction(1, 2), np.float32(0.5), np.float16(0.5), np.array(0.5), jnp.float32(0.5), jnp.bfloat16(0.5)):
        np.testing.assert_array_equal(jax_dcn.deform_psroi_pool(**CALLS["deform_psroi_pool"] | {name: value}), half)


@pytest.mark.parametrize("name", ["output_size", "sample_per_part"])
def test_whole_numbers(name):
    pair = jax_dcn.deform_psroi_pool(**CALLS["deform_psroi_pool"] | {name: (2, 2)})
    arrays = np.array(2), jnp.int32(2), np.array([2, 2]), jnp.array([2, 2])
    for two in (2, np.uint8(2), [2, 2], (np.int8(2), jnp.int32(2)), *arrays):
        np.testing.assert_array_equal(jax_dcn.deform_psroi_pool(**CALLS["deform_psroi_pool"] | {name: two}), pair)
