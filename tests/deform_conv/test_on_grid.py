"""Convolutions without offsets, beside XLA's convolution and beside offsets of zero."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn
from jax_dcn._operators.deform_conv import plan
from jax_dcn._primitive import extension
from tests.helpers.deform_conv import xla
from tests.helpers.deform_conv.cases import assert_near
from tests.helpers.lowered import lowered_for
from tests.helpers.operators import pull_back
from tests.helpers.slow import slow

pytestmark = pytest.mark.platforms("cpu")

has_fused = pytest.mark.skipif(plan.INSTRUCTIONS == "portable", reason="the fused kernels are slow here")
PRODUCT, SHIFTS = "a matrix product", "a sum of shifted products"

# The image, the channels, the kernel, the features, options, and how it is computed on a CPU: path and choice.
CASES = {
    "ordinary": ((9, 8), 16, (3, 3), 32, {}, ("fused", "")),
    "strided": ((9, 8), 16, (3, 2), 40, {"strides": (2, 3), "kernel_dilation": (1, 2)}, ("fused", "")),
    "padded": ((5, 6), 33, (2, 3), 32, {"padding": ((3, 0), (-1, 4))}, ("fused", "")),
    "groups": ((7, 5), 32, (3, 3), 64, {"feature_group_count": 4}, ("fused", "")),
    "torus": ((7, 5), 16, (3, 4), 32, {"padding": "CIRCULAR", "kernel_dilation": (4, 1)}, ("fused", "")),
    "signal": ((11,), 16, (3,), 32, {"strides": 2}, ("fused", "")),
    "channels_first": ((9, 8), 16, (3, 3), 32, {"data_format": "NCHW"}, ("fused", "")),
    "one_tap": ((9, 8), 7, (1, 1), 5, {}, ("xla", PRODUCT)),
    "strided_tap": ((9, 8), 7, (1, 1), 5, {"strides": (2, 3), "padding": "VALID"}, ("xla", PRODUCT)),
    "padded_tap": ((9, 8), 16, (1, 1), 32, {"padding": 1}, ("fused", "")),
    "depthwise": ((9, 8), 6, (3, 2), 6, {"feature_group_count": 6}, ("xla", SHIFTS)),
    "strided_depthwise": (
        (9, 8), 6, (3, 2), 12,
        {"feature_group_count": 6, "strides": (3, 2), "padding": ((4, 2), (-1, 1)), "kernel_dilation": 2},
        ("xla", SHIFTS),
    ),
    "depthwise_torus": ((5, 4), 6, (3, 2), 6, {"feature_group_count": 6, "padding": "CIRCULAR"}, ("xla", SHIFTS)),
    "depthwise_volume": ((3, 4, 5), 4, (3, 2, 3), 4, {"feature_group_count": 4, "strides": (1, 2, 1)}, ("xla", SHIFTS)),
    "few_channels": ((9, 8), 3, (3, 3), 32, {}, ("xla", "")),
    "few_features": ((9, 8), 16, (3, 3), 4, {}, ("xla", "")),
    "volume": ((3, 4, 5), 16, (3, 3, 2), 32, {}, ("xla", "")),
    "no_images": ((9, 8), 7, (1, 1), 5, {"batch": 0}, ("xla", "")),
    "no_output": ((2, 2), 6, (3, 3), 6, {"feature_group_count": 6, "padding": "VALID"}, ("xla", "")),
}  # fmt: skip
BITS = ("ordinary", "strided", "padded", "groups", "torus")


def problem(name, dtype="float32"):
    """A function of x, weight and bias, another one of XLA's convolution, the operands, and a cotangent."""
    image, channels, kernel, features, options, _ = CASES[name]
    options = dict(options)
    random, batch = np.random.default_rng(0), options.pop("batch", 2)
    shapes = (batch, *image, channels), (*kernel, channels // options.get("feature_group_count", 1), features)
    x, weight, bias = (jnp.asarray(random.normal(size=shape), dtype) for shape in (*shapes, (features,)))
    if options.get("data_format") == "NCHW":
        x, weight = jnp.moveaxis(x, -1, 1), jnp.transpose(weight, (3, 2, 0, 1))
    function = getattr(jax_dcn, f"deform_conv{len(image)}d")

    def ours(x, weight, bias=None, offset=None, backend=None):
        return function(x, offset, weight, bias, backend=backend, **options)

    y = jax.eval_shape(ours, x, weight)
    return (
        ours,
        functools.partial(xla.convolve, **options),
        (x, weight, bias),
        jnp.asarray(random.normal(size=y.shape), dtype),
    )


@pytest.mark.parametrize("dtype, tolerance", [("float32", 2.0**-19), slow("bfloat16", 2.0**-6), slow("float64", 1e-12)])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, dtype, tolerance, x64):
    ours, theirs, operands, cotangent = problem(name, dtype)
    exact = [array.astype("float64") for array in operands]
    expected = pull_back(theirs, cotangent.astype("float64"), exact)
    found = pull_back(ours, cotangent, list(operands))
    assert all(array.dtype == dtype for array in jax.tree.leaves(found))
    assert_near(found, expected, tolerance)
    weight_alone = jax.jit(jax.grad(lambda weight: jnp.vdot(cotangent, ours(operands[0], weight)).astype(float)))
    assert_near(weight_alone(operands[1]), expected[1][1], tolerance)


@has_fused
@pytest.mark.parametrize("name", CASES)
def test_how_it_is_computed(name, limits_of_the_package):
    ours, _, (x, weight, _), _ = problem(name)
    found = {of.computation: (of.path, str(of.choices or "")) for of in jax_dcn.kernel_plan(ours, x, weight)}
    assert found["forward"] == CASES[name][-1]
    # XLA is slow at gradients of weights with few features, or with groups.
    is_slow_in_xla = name in ("few_features", "no_output")
    assert (found["weight"][0] == "fused") == (found["forward"][0] == "fused" or is_slow_in_xla)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", BITS)
def test_the_bits_are_those_of_offsets_of_zero(name, dtype):
    ours, _, operands, cotangent = problem(name, dtype)
    taps = math.prod(operands[1].shape[:-2])
    zeros = jnp.zeros((*cotangent.shape[:-1], 2 * taps))
    of_offset = (functools.partial(ours, offset=offset, backend="fused") for offset in (None, zeros))
    found, expected = (pull_back(function, cotangent, operands) for function in of_offset)
    assert jax.tree.all(jax.tree.map(np.array_equal, found, expected))


def test_neighbours_are_not_read():
    """Infinity times the weight zero of a corner would be NaN."""
    ours, theirs, (x, weight, bias), _ = problem("ordinary")
    x = x.at[0, 4, 4].set(jnp.inf)
    weight = jnp.abs(weight)  # the sums of infinities are infinite
    found, expected = ours(x, weight, bias, backend="fused"), theirs(x, weight, bias)
    assert np.isinf(found).any() and np.array_equal(np.isinf(found), np.isinf(expected)) and not np.isnan(found).any()


@pytest.mark.parametrize("name", ["ordinary", "signal", "strided_tap", "depthwise", "few_channels"])
def test_further_derivatives_and_batches(name):
    ours, theirs, (x, weight, bias), _ = problem(name)

    def results(function):
        def loss(x, weight, bias):
            return jnp.sin(function(x, weight, bias) / 8).sum()

        gradient = jax.grad(loss, (0, 1, 2))
        _, tangent = jax.jvp(function, (x, weight, bias), (x + 1, weight - 1, 2 * bias))
        _, second = jax.jvp(gradient, (x, weight, bias), (x + 1, weight - 1, 2 * bias))
        weights = jnp.stack([weight, -weight, 2 * weight])
        over_weights = jax.vmap(gradient, (None, 0, None))(x, weights, bias)
        over_images = jax.vmap(gradient, (0, None, None))(jnp.stack([x, 3 - x]), weight, bias)
        return tangent, second, over_weights, over_images

    assert_near(*(jax.jit(lambda f=f: results(f))() for f in (ours, theirs)), 2.0**-15)


@pytest.mark.parametrize("name", ["padded", "strided_tap", "strided_depthwise"])
def test_exported_functions_of_any_size(name):
    ours, _, (x, weight, _), _ = problem(name)  # whose padding is known

    def with_gradients(x, weight):
        return jax.value_and_grad(lambda x, weight: jnp.sin(ours(x, weight)).sum(), (0, 1))(x, weight)

    size = jax.export.symbolic_shape("batch, height, width", constraints=["height >= 4", "width >= 4"])
    shapes = jax.ShapeDtypeStruct((*size, x.shape[-1]), x.dtype), jax.ShapeDtypeStruct(weight.shape, weight.dtype)
    checks = [jax.export.DisabledSafetyCheck.custom_call(call) for call in extension.custom_calls]
    exported = jax.export.export(jax.jit(with_gradients), disabled_checks=checks)(*shapes)
    assert_near(exported.call(x, weight), with_gradients(x, weight), 2.0**-18)


@pytest.mark.parametrize("name", [name for name in CASES if name != "channels_first" and "torus" not in name])
@pytest.mark.parametrize("target", ["cuda", "tpu"])
def test_other_platforms_get_the_convolution_of_xla(name, target):
    ours, theirs, operands, _ = problem(name)

    def with_gradients(function):
        return jax.value_and_grad(lambda x, weight: jnp.sin(function(x, weight)).sum(), (0, 1))

    found, expected = (lowered_for(target, with_gradients(f), *operands[:2]) for f in (ours, theirs))
    assert found == expected


@pytest.mark.parametrize("dtype, result", [("float32", "bfloat16"), ("bfloat16", "float16"), ("bfloat16", "float32")])
@pytest.mark.parametrize("has_bias", [False, True])
def test_results_of_other_types(dtype, result, has_bias):
    """Elsewhere, XLA refuses results that are narrower than x."""
    _, theirs, (x, weight, bias), _ = problem("strided", dtype)
    options = CASES["strided"][4] | {"preferred_element_type": result}

    def ours(x, weight, backend=None):
        return jax_dcn.deform_conv2d(x, None, weight, bias if has_bias else None, backend=backend, **options)

    def gradients(function):
        return jax.grad(lambda x, weight: jnp.sin(function(x, weight) / 8).astype(jnp.float32).sum(), (0, 1))

    exact = [*map(jnp.float32, (x, weight))]
    expected = functools.partial(theirs, bias=jnp.float32(bias) if has_bias else None)
    tolerance = 2.0 ** {"bfloat16": -7, "float16": -9, "float32": -18}[result]
    for backend in (None, "reference"):
        assert ours(x, weight, backend).dtype == result
        assert_near(jnp.float32(ours(x, weight, backend)), expected(*exact), tolerance)
    assert_near(gradients(ours)(x, weight), gradients(expected)(*exact), 2.0**-6)
    assert lowered_for("tpu", ours, x, weight).count("stablehlo.convolution") == 1


@pytest.mark.parametrize("axis_of_x", [None, 0])
def test_weights_of_an_ensemble_are_one_convolution_elsewhere(axis_of_x):
    ours, theirs, (x, weight, _), _ = problem("strided")
    operands = jnp.stack([x, x + 1]) if axis_of_x == 0 else x, jnp.stack([weight, 2 * weight])
    mapped = jax.vmap(ours, (axis_of_x, 0))
    assert_near(mapped(*operands), jax.vmap(theirs, (axis_of_x, 0))(*operands), 2.0**-18)
    text = lowered_for("cuda", mapped, *operands)
    assert text.count("stablehlo.convolution") == 1 and "stablehlo.while" not in text


def test_one_gradient_by_itself():
    ours, _, (x, weight, _), cotangent = problem("strided")
    options = CASES["strided"][4]
    _, (d_x, d_weight) = pull_back(ours, cotangent, (x, weight))
    assert_near(jax_dcn.deform_conv2d_input_grad(cotangent, x, None, weight, **options), d_x, 2.0**-18)
    assert_near(jax_dcn.deform_conv2d_weight_grad(cotangent, x, None, weight, **options), d_weight, 2.0**-18)
    for gradient in (jax_dcn.deform_conv2d_offset_grad, jax_dcn.deform_conv2d_mask_grad):
        with pytest.raises(TypeError, match="offset must be an array, got None"):
            gradient(cotangent, x, None, weight, mask=cotangent, **options)


def test_what_the_fused_kernels_cannot_do_is_refused(x64):
    ours, _, (x, weight, _), _ = problem("ordinary", "float64")
    with pytest.raises(ValueError, match="backend='fused' cannot compute the forward: the data are float64"):
        ours(x, weight, backend="fused")
    with pytest.raises(
        ValueError, match="backend='fused' cannot compute deform_conv2d_on_grid on cuda, where it is an"
    ):
        lowered_for("cuda", lambda x, weight: ours(x, weight, backend="fused"), x, weight)
