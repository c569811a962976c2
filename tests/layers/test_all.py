"""What all layers have in common, in Linen and NNX."""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax.test_util import check_grads

import jax_dcn
import jax_dcn.linen
import jax_dcn.nnx
from jax_dcn.quantize import power_of_two
from tests.helpers.layers import (
    INTERFACES,
    LEVELS,
    assert_close,
    both_interfaces,
    build,
    linen_layer,
    nnx_layer,
    nnx_module,
    normal,
    problem,
    queries,
    randomized,
    returning,
    scores_and_regions,
)

ATTENTION, POOLING = "MultiScaleDeformableAttention", "DeformPSRoIPool"
# A pooling layer has one of two branches.
EACH = [(name, {}) for name in ("DeformConv", ATTENTION, "DCNv3", "DCNv4", POOLING)]
EACH.append((POOLING, {"offset_branch": "fc"}))
each_layer = pytest.mark.parametrize("name, arguments", EACH, ids=str)
VARIANTS = [
    *EACH,
    ("DeformConv", {"strides": (2, 1), "padding": "VALID", "kernel_dilation": 2}),
    ("DeformConv", {"padding": "CIRCULAR", "use_bias": False, "modulated": False}),
    ("DeformConv", {"kernel_size": (3,), "kernel_dilation": 2}),
    ("DeformConv", {"kernel_size": (1, 2, 3), "offset_groups": 2}),
    ("DeformConv", {"padding": ((2, 0), (1, 1)), "feature_group_count": 2, "offset_groups": 4}),
    ("DeformConv", {"offset_bound": 1.0, "dtype": jnp.bfloat16, "preferred_element_type": jnp.float32}),
    ("DeformConv", {"offset_limit": max}),
    ("DeformConv", {"kernel_transform": power_of_two, "mask_scale": 2.0, "backend": "reference"}),
    (POOLING, {"modulated": False, "part_size": None}),
    (POOLING, {"offset_branch": "fc", "dtype": jnp.bfloat16}),
    (ATTENTION, {"num_points": (2, 1), "method": "discrete", "dtype": jnp.bfloat16}),
    (ATTENTION, {"num_points": [np.int32(2), 1], "offset_scale": 2.0, "use_projections": False}),
    ("DCNv3", {"center_feature_scale": True, "dtype": jnp.bfloat16, "kernel_size": 5, "remove_center": True}),
    ("DCNv4", {"center_feature_scale": True, "dtype": jnp.float16, "dw_kernel_size": 5, "output_bias": False}),
]


@pytest.mark.parametrize("name, arguments", VARIANTS)
def test_both_interfaces_agree(name, arguments):
    arguments = arguments | returning(name)
    layers = [build(make, name, **arguments)[0] for make in INTERFACES]
    params = randomized(layers[0].params)
    inputs = problem(name, **arguments)[0]
    assert jax.tree.structure(params) == jax.tree.structure(layers[1].params)
    jax.tree.map(np.testing.assert_array_equal, *(jax.jit(layer.apply)(params, *inputs) for layer in layers))


@pytest.mark.platforms("cpu")
@pytest.mark.parametrize("name", jax_dcn.linen.__all__)
def test_options_are_documented_and_the_same_in_both_interfaces(name):
    """They also have the same order, and are keywords where there are many."""
    options = []
    for layer in (getattr(jax_dcn.linen, name), getattr(jax_dcn.nnx, name)):
        parameters = {key: one for key, one in inspect.signature(layer.__init__).parameters.items() if key != "self"}
        documented = re.findall(r"^  (\w+): ", layer.__doc__.partition("Args:")[2].partition("\n\n")[0], re.MULTILINE)
        assert set(documented) == parameters.keys() - {"parent", "name"}
        assert "Example:" in layer.__doc__ and inspect.getdoc(layer.__call__)
        only_one = {"features", "in_features", "out_features", "rngs", "kernel_metadata", "bias_metadata"}
        only_one |= {"parent", "name", "promote_dtype", "use_running_average"}
        options.append([(key, one.kind, one.default) for key, one in parameters.items() if key not in only_one])
    assert options[0] == options[1]


@each_layer
@pytest.mark.parametrize("dtype", [jnp.bfloat16, pytest.param(jnp.float16, marks=pytest.mark.slow)])
def test_low_precision(name, arguments, dtype):
    """Where the samples lie and how much they count is that of the float32 layer, for any dtype of the computation."""
    arguments = arguments | returning(name)
    layer, inputs = build(linen_layer, name, **arguments)
    params = randomized(layer.params)
    y, *sampling = layer.apply(params, *inputs)
    low_y, *low_sampling = build(linen_layer, name, **arguments, dtype=dtype)[0].apply(params, *inputs)
    assert low_y.dtype == dtype
    assert_close(low_sampling, sampling, 0)
    assert_close(low_y.astype(jnp.float32), y, 0.05 if dtype == jnp.bfloat16 else 0.02)

    low = build(linen_layer, name, **arguments, param_dtype=dtype)[0]
    assert {leaf.dtype for leaf in jax.tree.leaves(low.params)} == {jnp.dtype(dtype)}
    low_inputs = [array if i == 1 else array.astype(dtype) for i, array in enumerate(inputs)]
    assert [array.dtype for array in low.apply(low.params, *low_inputs)] == [dtype, jnp.float32, jnp.float32]


@pytest.mark.parametrize("name, arguments", [("DeformConv", {}), (POOLING, {})], ids=str)
def test_double_precision(name, arguments, x64):
    """The golden files of the other layers are in double precision."""
    arguments = arguments | returning(name) | {"param_dtype": jnp.float64}
    inputs, arguments, options = problem(name, **arguments)
    inputs = [array.astype(jnp.float64) for array in inputs]
    layer = linen_layer(name, inputs, arguments, **options)
    params = randomized(layer.params)
    assert {array.dtype for array in layer.apply(params, *inputs)} == {jnp.dtype(jnp.float64)}

    @jax.jit
    def loss(params, x):
        return layer.apply(params, x, *inputs[1:])[0]

    check_grads(loss, (params, inputs[0]), 1, ["rev"], atol=1e-6, rtol=1e-6, eps=1e-7)


@each_layer
def test_batch_dimensions(name, arguments):
    arguments = arguments | returning(name)
    layer, _ = build(linen_layer, name, **arguments)
    params = randomized(layer.params)
    inputs = problem(name, lead=(2, 3), **arguments)[0]
    apply = jax.jit(layer.apply)
    results = apply(params, *inputs)
    for index in np.ndindex(2, 3):
        one = apply(params, *(array[index] for array in inputs))
        assert_close(one, jax.tree.map(lambda array, index=index: array[index], results))
    assert_close(jax.jit(jax.vmap(layer.apply, (None, *[0] * len(inputs))))(params, *inputs), results)


@each_layer
def test_backend_and_precision_are_passed_on(name, arguments):
    for backend in (None, "reference"):
        layer, inputs = build(linen_layer, name, **arguments, backend=backend, precision="high")
        text = jax.jit(layer.apply).lower(layer.params, *inputs).as_text()
        assert ("@dcn_" in text) is (backend is None)
        products = [line for line in text.splitlines() if "convolution(" in line or "dot_general" in line]
        # The tests' default is "highest".
        assert products and all("HIGH" in line and "HIGHEST" not in line for line in products)


@each_layer
def test_transformations_of_linen(name, arguments):
    inputs, arguments, options = problem(name, **arguments)
    if options:
        arguments = arguments | {"num_points": [3, 3], "spatial_shapes": [list(size) for size in LEVELS]}
    layer = linen_layer(name, inputs, arguments)
    wrapped = nn.jit(nn.remat(getattr(jax_dcn.linen, name)))(**arguments)

    def slopes(apply):
        return jax.jit(jax.value_and_grad(lambda params: (apply(params, *inputs) ** 2).sum()))(params)

    params = randomized(layer.params)
    assert_close(slopes(lambda params, *inputs: wrapped.apply({"params": params}, *inputs)), slopes(layer.apply), 1e-4)


@each_layer
def test_transformations_of_nnx(name, arguments):
    inputs, arguments, options = problem(name, **arguments)
    if options:
        arguments = arguments | options
    layer = nnx_module(name, inputs, **arguments)
    nnx.update(layer, randomized(nnx.state(layer)))

    def squared(layer):
        return (layer(*inputs) ** 2).sum()

    gradient = nnx.jit(nnx.grad(squared))(layer)
    assert all(leaf.any() for leaf in jax.tree.leaves(gradient))
    assert_close(nnx.jit(nnx.grad(nnx.remat(squared)))(layer), gradient, 1e-4)
    np.testing.assert_array_equal(nnx.merge(*nnx.split(layer))(*inputs), layer(*inputs))


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        (ATTENTION, {"num_heads": 3}, "features must be a multiple of num_heads=3, got 8"),
        (ATTENTION, {"num_points": (4,)}, r"num_points must be an int, or .* got \(4,\)"),
        (ATTENTION, {"num_points": (4, 0)}, r"num_points\[1\] must be a positive int, got 0"),
        ("DCNv3", {"groups": 3}, "(features|channel count of x) must be a multiple of groups=3, got 8"),
        ("DCNv4", {"kernel_size": 1, "remove_center": True}, "kernel_size must leave a tap"),
        ("DeformConv", {"features": 2.5}, "features must be a positive int, got 2.5"),
        ("DeformConv", {"offset_groups": 3}, "(in_features|of x) must be a multiple of offset_groups=3, got 8"),
        ("DeformConv", {"feature_group_count": 3}, "features must be a multiple of feature_group_count=3, got 8"),
        ("DeformConv", {"features": 9, "feature_group_count": 3}, "(in_features|of x) .* feature_group_count=3, got 8"),
        ("DeformConv", {"offset_limit": -1.0}, "offset_limit must be a positive number .* got -1.0"),
        ("DeformConv", {"offset_limit": 1, "offset_bound": 2}, "offset_limit must be None with offset_bound=2, got 1"),
        (POOLING, {"offset_branch": "fc", "classes": 4}, r"a multiple of 24, for classes=4 and group_size=\(3, 2\)"),
    ],
)
@both_interfaces
def test_errors_of_arguments(make, name, arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        jax.eval_shape(lambda: build(make, name, **arguments)[0].params)


# Wrong values of options, whatever the layer, and what its message says that they must be.
BAD = dict.fromkeys(("features", "num_heads", "num_levels", "classes", "hidden_features"), (1.5, "a positive int"))
BAD |= dict.fromkeys(("offset_groups", "feature_group_count", "groups"), (0, "a positive int"))
BAD |= dict.fromkeys(("dtype", "param_dtype"), ("int8", "float16, "))
BAD |= dict.fromkeys(("kernel_size", "dw_kernel_size", "group_size", "part_size"), ((1, 2, 3, 4), ""))
BAD |= dict.fromkeys(("strides", "kernel_dilation", "output_size", "sample_per_part"), (0, ""))
BAD |= dict.fromkeys(("kernel_init", "bias_init", "kernel_transform", "activation", "promote_dtype"), (5, "a function"))
BAD |= dict.fromkeys(("method", "norm", "offset_branch", "center_feature_scale"), ("other", "one of "))
BAD |= dict.fromkeys(("offset_scale", "mask_scale", "trans_std", "offset_limit"), ("1", "a finite number"))
BAD |= dict.fromkeys(("padding", "backend", "spatial_shapes", "offset_bound", "spatial_scale"), ("other", ""))
OPTIONS = {name: inspect.signature(getattr(jax_dcn.linen, name)).parameters for name, _ in EACH}


@pytest.mark.parametrize("name, option", [(name, one) for name, of in OPTIONS.items() for one in of if one in BAD])
@both_interfaces
def test_wrong_values_of_options(make, name, option):
    wrong, message = BAD[option]
    with pytest.raises((TypeError, ValueError), match=rf"{option} must be .*{message}.* got {re.escape(repr(wrong))}"):
        layer, inputs = build(make, name, **{option: wrong})
        jax.eval_shape(layer.apply, layer.params, *inputs)


QUERY, REFERENCES, VALUE = queries()
X, ROIS, READ = scores_and_regions()
OFFSET, IMAGES = normal(4, (6, 2, 3, 6)), ("DeformConv", "DCNv3", "DCNv4")


@pytest.mark.parametrize(
    "name, arguments, changes, message",
    [
        *(
            (ATTENTION, {}, changes, message)
            for changes, message in [
                ({"query": QUERY[..., :7]}, r"query must have features=8 channels, got shape \(2, 4, 7\)"),
                ({"query": QUERY.astype(int)}, "query must be of type .* got int32"),
                ({"value": VALUE[..., :7]}, r"value must have features=8 channels, got shape \(2, 36, 7\)"),
                ({"value": VALUE[0]}, r"value must have shape \[\.\.\., S, features\] for query of shape \(2, 4, 8\)"),
                ({"value": VALUE[:, :35]}, r"value must have .* the 36 pixels .* got shape \(2, 35, 8\)"),
                ({"value": VALUE[:1]}, r"value must have the leading dimensions of query.* got shape \(1, 36, 8\)"),
                ({"reference_points": REFERENCES[..., :1]}, r"reference_points must have shape .* \(2, 4, 2, 1\)"),
                ({"reference_points": REFERENCES[:, :1]}, r"reference_points must have shape .* got \(2, 1, 2, 2\)"),
                ({"reference_points": REFERENCES.astype("bfloat16")}, "reference_points must be .* loses whole pixels"),
                ({"spatial_shapes": LEVELS[:1]}, r"spatial_shapes must have num_levels=2 levels, got \[\(5, 6\)\]"),
                ({"spatial_shapes": ((5, 6), (3, 0))}, r"spatial_shapes\[1\] must be a positive int"),
                ({"padding_mask": jnp.ones((2, 36))}, "padding_mask must be boolean, True where .* got float32"),
                ({"padding_mask": jnp.ones((2, 4), bool)}, r"padding_mask must have shape \(2, 36\).* got \(2, 4\)"),
                ({"padding_mask": [True]}, r"padding_mask must be an array, got \[True\]"),
            ]
        ),
        *((name, {}, {"x": X[0, 0, 0]}, r"x must have the shape \[\.\.\., height, width, ch") for name in IMAGES),
        ("DeformConv", {}, {"mask": jnp.ones((2, 5, 6, 9))}, "mask was given without an offset"),
        ("DeformConv", {"kernel_transform": lambda a: a[:2]}, {}, r"kernel_transform must keep .* got \(2, 3, 8, 8\)"),
        ("DeformConv", {"offset_limit": lambda size: np.nan}, {}, r"offset_limit\(\(5, 6\)\) must be .* got nan"),
        (POOLING, {"classes": 4}, {}, "the channel count of x must be a multiple of 24, for classes=4 .* got 36"),
        (POOLING, {}, {"x": X[0]}, r"x must have shape \[\.\.\., N, H, W, C\], got \(9, 8, 36\)"),
        (POOLING, {}, {"features": [1.0]}, r"features must be an array, got \[1.0\]"),
        (POOLING, {}, {"features": READ[:, :8]}, r"features must be as many .* \(2, 9, 8, 36\), got \(2, 8, 8, 7\)"),
        (POOLING, {"offset_branch": "fc"}, {"features": READ}, "features must be None with offset_branch='fc'"),
        (POOLING, {}, {"mask": jnp.ones([6, 2, 3, 3])}, "mask was given without an offset"),
        (POOLING, {}, {"offset": OFFSET[..., :2]}, r"offset must have 6 channels, .* got shape \(6, 2, 3, 2\)"),
        (POOLING, {}, {"offset": OFFSET, "mask": OFFSET}, r"mask must have the shape \(6, 2, 3, 3\), .* 3, 6\)"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
@both_interfaces
def test_errors_of_calls(make, name, arguments, changes, message):
    names = list(inspect.signature(getattr(jax_dcn.linen, name).__call__).parameters)[1:]

    def call():
        layer, inputs = build(make, name, **arguments)
        return layer.apply(layer.params, **dict(zip(names, inputs, strict=False)) | changes)

    with pytest.raises((TypeError, ValueError), match=message):
        jax.eval_shape(call)


@pytest.mark.parametrize("name", IMAGES)
def test_layers_of_nnx_know_the_number_of_channels(name):
    layer, _ = build(nnx_layer, name)
    with pytest.raises(ValueError, match=r"x must have (in_)?features=8 channels, got 36"):
        layer.apply(layer.params, X)
