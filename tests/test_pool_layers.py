"""`DeformPSRoIPool` in Linen and NNX."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

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

SAMPLING = {"spatial_scale": 0.5, "sample_per_part": (3, 2)}
# 6 features, a group size of 3 x 2, bins that are neither square nor as many as the parts
BINS = {"output_size": (5, 4), "group_size": (3, 2), **SAMPLING}
MOVES = {"part_size": (2, 3), "trans_std": 0.2}
ARGUMENTS = {**BINS, **MOVES, "classes": 3, "hidden_features": 8}
FEATURES, SCORES = 7, 36


def normal(seed, shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def images(channels, lead=(), dtype=jnp.float32):
    return normal(channels, (*lead, 2, 9, 8, channels), dtype)


def regions(lead=(), dtype=jnp.float32):
    """Six regions, some of which reach outside."""
    random = np.random.default_rng(3)
    corner = random.uniform(-4, 10, size=(*lead, 6, 2))
    size = random.uniform(2, 12, size=(*lead, 6, 2))
    return jnp.asarray(np.concatenate([random.integers(0, 2, (*lead, 6, 1)), corner, corner + size], -1), dtype)


def operands(branch, lead=(), dtype=jnp.float32):
    """x and rois and, for the convolution, the features that it reads."""
    features = [images(FEATURES, lead, dtype)] if branch == "conv" else []
    return [images(SCORES, lead, dtype), regions(lead, dtype), *features]


class Layer(NamedTuple):
    """A Linen or NNX layer as a function of its parameters, with the names of Linen."""

    params: dict
    apply: Callable


def linen_layer(inputs, **arguments):
    layer = jax_dcn.linen.DeformPSRoIPool(**ARGUMENTS | arguments)
    params = jax.jit(layer.init)(jax.random.key(0), *inputs)["params"]
    return Layer(params, lambda params, *inputs, **options: layer.apply({"params": params}, *inputs, **options))


def nnx_layer(inputs, **arguments):
    in_features = inputs[2 if len(inputs) > 2 else 0].shape[-1]
    layer = jax_dcn.nnx.DeformPSRoIPool(in_features, **ARGUMENTS | arguments, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(layer)
    params = nnx.to_pure_dict(state)
    if "fc_offset" in params:
        params = {"fc_offset": {f"layers_{i}": dense for i, dense in params["fc_offset"]["layers"].items()}}

    def apply(params, *inputs, **options):
        if "fc_offset" in params:
            layers = {int(name.removeprefix("layers_")): dense for name, dense in params["fc_offset"].items()}
            params = {"fc_offset": {"layers": layers}}
        return nnx.merge(graphdef, params)(*inputs, **options)

    return Layer(params, apply)


both_interfaces = pytest.mark.parametrize("make", [linen_layer, nnx_layer], ids=["linen", "nnx"])
both_branches = pytest.mark.parametrize("branch", ["conv", "fc"])


def deforming(layer, scale=0.3):
    """The layer with random parameters instead of zeros."""
    params = jax.tree.map(lambda leaf: scale * normal(len(leaf.shape), leaf.shape, leaf.dtype), layer.params)
    return layer._replace(params=params)


def times_mask_of_parts(pooled, mask):
    """With loops: each bin is multiplied by the mask of its part and class."""
    pooled, mask = np.array(pooled), np.asarray(mask)
    _, rows, columns, features = pooled.shape
    _, part_rows, part_columns, classes = mask.shape
    for r, i, j, d in np.ndindex(pooled.shape):
        part = int(np.floor(i * part_rows / rows)), int(np.floor(j * part_columns / columns))
        pooled[r, i, j, d] *= mask[(r, *part, d // (features // classes))]
    return pooled


def assert_close(actual, expected, tolerance=1e-5):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance), actual, expected)


@both_interfaces
@pytest.mark.parametrize("modulated, numbers", [(False, 2), (True, 3)])
def test_parameters(make, modulated, numbers):
    outputs = numbers * 3 * 2 * 3
    conv = make(operands("conv"), modulated=modulated).params
    assert jax.tree.map(jnp.shape, conv) == {"conv_offset": {"kernel": (1, 1, FEATURES, outputs), "bias": (outputs,)}}
    fc = make(operands("fc"), offset_branch="fc", modulated=modulated).params["fc_offset"]
    assert jax.tree.map(jnp.shape, fc) == {
        "layers_0": {"kernel": (5 * 4 * 6, 8), "bias": (8,)},
        "layers_2": {"kernel": (8, 8), "bias": (8,)},
        "layers_4": {"kernel": (8, outputs), "bias": (outputs,)},
    }
    assert all(fc[name]["kernel"].all() for name in ("layers_0", "layers_2"))
    assert not any(leaf.any() for leaf in jax.tree.leaves([conv, fc["layers_4"]]))


@both_interfaces
@both_branches
@pytest.mark.parametrize("arguments", [{}, {"modulated": True, "mask_scale": 2.0}], ids=str)
def test_a_new_layer_pools_plainly(make, branch, arguments):
    inputs = operands(branch)
    layer = make(inputs, offset_branch=branch, **arguments)
    assert_close(layer.apply(layer.params, *inputs), jax_dcn.psroi_pool(*inputs[:2], **BINS))


@both_interfaces
@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize("given", [True, False], ids=["features", "x"])
def test_conv_branch(make, modulated, given):
    """The first 2·classes features pooled from the convolution's maps are the offset, the rest the mask's logits."""
    inputs = operands("conv" if given else "fc")
    layer = deforming(make(inputs, modulated=modulated, mask_scale=3.0))
    pooled, offset, mask = jax.jit(partial(layer.apply, return_offsets=True))(layer.params, *inputs)

    x, rois, *features = inputs
    conv = layer.params["conv_offset"]
    maps = jnp.einsum("nhwi,io->nhwo", *features or [x], conv["kernel"][0, 0]) + conv["bias"]
    raw = jax_dcn.psroi_pool(maps, rois, output_size=(2, 3), group_size=(2, 3), **SAMPLING)
    check_prediction(inputs, raw, pooled, offset, mask, modulated)


@both_interfaces
@pytest.mark.parametrize("modulated", [False, True])
def test_fc_branch(make, modulated):
    inputs = operands("fc")
    layer = deforming(make(inputs, offset_branch="fc", modulated=modulated, mask_scale=3.0))
    pooled, offset, mask = jax.jit(partial(layer.apply, return_offsets=True))(layer.params, *inputs)

    hidden = jax_dcn.psroi_pool(*inputs, **BINS).reshape(6, -1)
    for name in ("layers_0", "layers_2", "layers_4"):
        dense = layer.params["fc_offset"][name]
        raw = hidden @ dense["kernel"] + dense["bias"]
        hidden = jnp.maximum(raw, 0)
    check_prediction(inputs, raw.reshape(6, 2, 3, -1), pooled, offset, mask, modulated)


def check_prediction(inputs, raw, pooled, offset, mask, modulated):
    assert jnp.abs(raw[..., :6]).max() > 0.3
    assert_close(offset, raw[..., :6])
    expected = jax_dcn.deform_psroi_pool(*inputs[:2], offset, **BINS, **MOVES)
    if modulated:
        assert raw.shape[-1] == 9
        assert_close(mask, 3 / (1 + jnp.exp(-raw[..., 6:])))
        expected = times_mask_of_parts(expected, mask)
    else:
        assert raw.shape[-1] == 6 and mask is None
    assert_close(pooled, expected)


@both_interfaces
@both_branches
def test_parts_are_the_bins_by_default(make, branch):
    inputs = operands(branch)
    layer = make(inputs, offset_branch=branch, part_size=None, classes=1, return_offsets=True)
    assert layer.apply(layer.params, *inputs)[1].shape == (6, 5, 4, 2)
    assert layer.apply(layer.params, *inputs, return_offsets=False).shape == (6, 5, 4, 6)


def test_linen_with_offsets_from_outside():
    x, rois, features = operands("conv")
    offset, mask = normal(4, (6, 2, 3, 6)), normal(5, (6, 2, 3, 3))
    for branch in ("conv", "fc"):
        layer = jax_dcn.linen.DeformPSRoIPool(**ARGUMENTS, offset_branch=branch, modulated=True)
        assert not layer.init(jax.random.key(0), x, rois, offset=offset)
        check_given_offsets(partial(layer.apply, {}), x, rois, offset, mask)
    pooled = jax_dcn.linen.DeformPSRoIPool(**ARGUMENTS).apply({}, x, rois, features, offset)
    np.testing.assert_array_equal(pooled, jax_dcn.deform_psroi_pool(x, rois, offset, **BINS, **MOVES))


@pytest.mark.parametrize("without_branch", [False, True])
@both_branches
def test_nnx_with_offsets_from_outside(branch, without_branch):
    x, rois = operands("fc")
    offset, mask = normal(4, (6, 2, 3, 6)), normal(5, (6, 2, 3, 3))
    layer = deforming_nnx_layer(branch)
    if without_branch:
        layer.conv_offset = layer.fc_offset = None
        assert not jax.tree.leaves(nnx.state(layer))
        with pytest.raises(ValueError, match=f"offset must be given to a layer whose {branch}_offset is None"):
            layer(x, rois)
    check_given_offsets(layer, x, rois, offset, mask)


def check_given_offsets(apply, x, rois, offset, mask):
    expected = jax_dcn.deform_psroi_pool(x, rois, offset, **BINS, **MOVES)
    pooled, used_offset, used_mask = apply(x, rois, offset=offset, return_offsets=True)
    np.testing.assert_array_equal(pooled, expected)
    np.testing.assert_array_equal(used_offset, offset)
    assert used_mask is None
    assert_close(apply(x, rois, offset=offset, mask=mask), times_mask_of_parts(expected, mask))


def deforming_nnx_layer(branch):
    layer = jax_dcn.nnx.DeformPSRoIPool(SCORES, **ARGUMENTS, offset_branch=branch, modulated=True, rngs=nnx.Rngs(0))
    nnx.update(layer, jax.tree.map(lambda leaf: 0.3 * normal(leaf.ndim, leaf.shape), nnx.state(layer)))
    return layer


@both_branches
@pytest.mark.parametrize("arguments", [{}, {"modulated": True}, {"dtype": jnp.bfloat16, "modulated": True}], ids=str)
def test_both_interfaces_agree(branch, arguments):
    inputs = operands(branch)
    layers = [make(inputs, offset_branch=branch, return_offsets=True, **arguments) for make in (linen_layer, nnx_layer)]
    params = deforming(layers[0]).params
    jax.tree.map(np.testing.assert_array_equal, *(layer.apply(params, *inputs) for layer in layers))


@both_interfaces
@both_branches
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_low_precision(make, branch, dtype):
    """Offsets and masks are those of the float32 layer, for any dtype of the pooling."""
    inputs = operands(branch)
    options = {"offset_branch": branch, "modulated": True, "return_offsets": True}
    layer = deforming(make(inputs, **options))
    pooled, offset, mask = layer.apply(layer.params, *inputs)
    low_pooled, low_offset, low_mask = make(inputs, **options, dtype=dtype).apply(layer.params, *inputs)
    assert low_pooled.dtype == dtype
    assert_close((low_offset, low_mask), (offset, mask), 0)
    assert_close(low_pooled.astype(jnp.float32), pooled, 0.05)

    low_inputs = [array if i == 1 else array.astype(dtype) for i, array in enumerate(inputs)]
    in_low = make(low_inputs, **options, param_dtype=dtype)
    assert {leaf.dtype for leaf in jax.tree.leaves(in_low.params)} == {jnp.dtype(dtype)}
    assert [array.dtype for array in in_low.apply(in_low.params, *low_inputs)] == [dtype, jnp.float32, jnp.float32]


@both_branches
def test_double_precision(branch, x64):
    inputs = operands(branch, dtype=jnp.float64)
    arguments = {"offset_branch": branch, "modulated": True, "param_dtype": jnp.float64, "return_offsets": True}
    layer = deforming(linen_layer(inputs, **arguments))
    assert {array.dtype for array in layer.apply(layer.params, *inputs)} == {jnp.dtype(jnp.float64)}

    x, rois, *features = inputs

    @jax.jit
    def pool(params, x, *features):
        return layer.apply(params, x, rois, *features)[0]

    check_grads(pool, (layer.params, x, *features), 1, atol=1e-6, rtol=1e-6, eps=1e-7)


@both_interfaces
@both_branches
def test_vmap_and_batch_dimensions(make, branch):
    inputs = operands(branch, lead=(3,))
    layer = deforming(make([array[0] for array in inputs], offset_branch=branch, modulated=True, return_offsets=True))
    apply = jax.jit(layer.apply)
    rows = [apply(layer.params, *(array[i] for array in inputs)) for i in range(3)]
    expected = jax.tree.map(lambda *row: jnp.stack(row), *rows)
    assert_close(apply(layer.params, *inputs), expected)
    in_axes = (None, *[0] * len(inputs))
    assert_close(jax.jit(jax.vmap(layer.apply, in_axes))(layer.params, *inputs), expected)


@both_interfaces
@both_branches
def test_gradients_reach_the_branch(make, branch):
    inputs = operands(branch)
    layer = make(inputs, offset_branch=branch, modulated=True)

    @jax.jit
    def gradient(params):
        return jax.grad(lambda params: (layer.apply(params, *inputs) ** 2).sum())(params)

    params = layer.params
    first = gradient(params)
    last_layer = first["conv_offset"] if branch == "conv" else first["fc_offset"]["layers_4"]
    assert all(leaf.any() for leaf in jax.tree.leaves(last_layer))
    params = jax.tree.map(lambda param, slope: param - 1e-3 * slope, params, first)
    assert all(leaf.any() for leaf in jax.tree.leaves(gradient(params)))


@both_interfaces
@both_branches
@pytest.mark.parametrize("padding", [[-1, 2, 2, 9, 9], [-1, jnp.nan, jnp.inf, 0, 0]], ids=str)
def test_padding(make, branch, padding):
    """A padding region gives zeros, and does not change any gradient."""
    x, rois, *features = operands(branch)
    layer = deforming(make([x, rois, *features], offset_branch=branch, modulated=True, return_offsets=True))

    @jax.jit
    def run(rois):
        def loss(params, x, *features):
            pooled, offset, mask = layer.apply(params, x, rois, *features)
            return jnp.sin(pooled).sum(), (pooled, offset, mask)

        arguments = layer.params, x, *features
        return jax.grad(loss, range(len(arguments)), has_aux=True)(*arguments)

    gradients, (pooled, offset, mask) = run(rois.at[2].set(jnp.array(padding)))
    assert not pooled[2].any()
    assert jnp.isfinite(offset).all() and jnp.isfinite(mask).all()
    if branch == "conv":
        assert not offset[2].any()
    expected, _ = run(jnp.delete(rois, 2, 0, assume_unique_indices=True))
    assert_close(gradients, expected, 1e-4)


@both_interfaces
@both_branches
def test_no_regions(make, branch):
    inputs = operands(branch)
    layer = make(inputs, offset_branch=branch, modulated=True, return_offsets=True)
    inputs[1] = inputs[1][:0]
    shapes = [array.shape for array in layer.apply(layer.params, *inputs)]
    assert shapes == [(0, 5, 4, 6), (0, 2, 3, 6), (0, 2, 3, 3)]


@both_interfaces
@both_branches
def test_backend_and_precision_are_passed_on(make, branch):
    inputs = operands(branch)
    text = {}
    for backend in (None, "reference"):
        layer = make(inputs, offset_branch=branch, backend=backend, precision="highest")
        text[backend] = jax.jit(layer.apply).lower(layer.params, *inputs).as_text()
    assert "dcn_roi_pool" in text[None] and "dcn_roi_pool" not in text["reference"]
    products = [line for line in text[None].splitlines() if "convolution(" in line or "dot_general" in line]
    assert len(products) == {"conv": 1, "fc": 3}[branch]
    assert all("HIGHEST" in line for line in products)


@both_interfaces
def test_kernel_init_is_that_of_the_hidden_layers(make):
    layer = make(operands("fc"), offset_branch="fc", kernel_init=nn.initializers.constant(0.5))
    means = {name: dense["kernel"].mean() for name, dense in layer.params["fc_offset"].items()}
    assert means == {"layers_0": 0.5, "layers_2": 0.5, "layers_4": 0.0}


@both_branches
@pytest.mark.parametrize("lifted", [nn.remat, nn.jit])
def test_linen_remat_and_jit(branch, lifted):
    inputs = operands(branch)
    plain = deforming(linen_layer(inputs, offset_branch=branch))
    layer = lifted(jax_dcn.linen.DeformPSRoIPool)(**ARGUMENTS, offset_branch=branch)

    def loss(apply, params):
        return (apply(params, *inputs) ** 2).sum()

    gradient = jax.jit(jax.grad(partial(loss, lambda params, *inputs: layer.apply({"params": params}, *inputs))))
    expected = jax.jit(jax.grad(partial(loss, plain.apply)))
    assert_close(gradient(plain.params), expected(plain.params), 1e-4)


@both_branches
def test_nnx_jit_and_remat(branch):
    x, rois = operands("fc")
    layer = deforming_nnx_layer(branch)

    def squared(layer, x):
        return (layer(x, rois) ** 2).sum()

    expected = nnx.jit(nnx.grad(squared))(layer, x)
    assert all(leaf.any() for leaf in jax.tree.leaves(expected))
    assert_close(nnx.jit(nnx.grad(nnx.remat(squared)))(layer, x), expected, 1e-4)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"offset_branch": "linear"}, "offset_branch must be one of 'conv', 'fc', got 'linear'"),
        ({"classes": 0}, "classes must be a positive int, got 0"),
        ({"hidden_features": 1.5}, "hidden_features must be a positive int, got 1.5"),
        ({"mask_scale": "2"}, "mask_scale must be a finite number, got '2'"),
        ({"dtype": "int32"}, "dtype must be float16, .* got 'int32'"),
        ({"output_size": 0}, "output_size must be .* got 0"),
        ({"group_size": (1, 2, 3)}, r"group_size must be .* got \(1, 2, 3\)"),
        ({"part_size": "7"}, "part_size must be .* got '7'"),
        ({"sample_per_part": -1}, "sample_per_part must be .* got -1"),
        (
            {"offset_branch": "fc", "classes": 4},
            r"(in_features|channel count of x) must be a multiple of 24, for classes=4 and group_size=\(3, 2\), got 36",
        ),
    ],
)
@both_interfaces
def test_errors_of_arguments(make, arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(operands("fc"), **arguments)


@pytest.mark.parametrize(
    "arguments, changes, message",
    [
        ({"backend": "gpu"}, {}, "backend must be .* got 'gpu'"),
        ({"trans_std": "1"}, {}, "trans_std must be a finite number, got '1'"),
        ({"classes": 4}, {}, r"the channel count of x must be a multiple of 24, for classes=4 .* got 36"),
        ({}, {"x": images(SCORES)[0]}, r"x must have shape \[\.\.\., N, H, W, C\], got \(9, 8, 36\)"),
        ({}, {"x": images(SCORES).astype(int)}, "x must be of type .* got int32"),
        ({}, {"rois": regions()[:, :4]}, r"rois must have shape \(R, 5\) for x of shape \(2, 9, 8, 36\), got \(6, 4\)"),
        ({}, {"features": [1.0]}, r"features must be an array, got \[1.0\]"),
        (
            {},
            {"features": images(FEATURES)[:, :8]},
            r"features must be as many and as large as x, of shape \(2, 9, 8, 36\), got \(2, 8, 8, 7\)",
        ),
        ({"offset_branch": "fc"}, {"features": images(FEATURES)}, "features must be None with offset_branch='fc'"),
        ({}, {"mask": jnp.ones([6, 2, 3, 3])}, "mask was given without an offset"),
        (
            {},
            {"offset": jnp.zeros([6, 2, 3, 2])},
            r"offset must have 6 channels, two for each of classes=3, got shape \(6, 2, 3, 2\)",
        ),
        ({}, {"offset": jnp.zeros([6, 3, 3, 6])}, r"offset must have shape \(6, 2, 3, 2·classes\) .* \(6, 3, 3, 6\)"),
        (
            {},
            {"offset": jnp.zeros([6, 2, 3, 6]), "mask": jnp.ones([6, 5, 4, 3])},
            r"mask must have the shape \(6, 2, 3, 3\), one for each part and class, got \(6, 5, 4, 3\)",
        ),
    ],
)
@both_interfaces
def test_errors_of_a_call(make, arguments, changes, message):
    inputs = {"x": images(SCORES), "rois": regions(), "features": None, "offset": None, "mask": None, **changes}
    arguments = {**ARGUMENTS, "modulated": True, **arguments}

    def call():
        if make is linen_layer:
            layer = jax_dcn.linen.DeformPSRoIPool(**arguments)
            return layer.init(jax.random.key(0), **inputs)
        return jax_dcn.nnx.DeformPSRoIPool(SCORES, **arguments, rngs=nnx.Rngs(0))(**inputs)

    with pytest.raises((TypeError, ValueError), match=message):
        jax.eval_shape(call)


def test_nnx_knows_its_number_of_features():
    with pytest.raises(ValueError, match="in_features must be a positive int, got 0"):
        jax_dcn.nnx.DeformPSRoIPool(0, 3, rngs=nnx.Rngs(0))
    x, rois, features = operands("conv")
    layer = jax_dcn.nnx.DeformPSRoIPool(FEATURES, **ARGUMENTS, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="x must have in_features=7 channels, got 36"):
        layer(x, rois)
    with pytest.raises(ValueError, match="features must have in_features=7 channels, got 6"):
        layer(x, rois, features[..., :6])
    layer = jax_dcn.nnx.DeformPSRoIPool(SCORES, **ARGUMENTS, offset_branch="fc", rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="x must have in_features=36 channels, got 18"):
        layer(x[..., :18], rois)
