"""`DeformConv` in Linen and NNX: what only it has."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import AxisType

import jax_dcn.nnx
from jax_dcn import deform_conv2d
from jax_dcn.linen import DeformConv
from jax_dcn.quantize import power_of_two
from tests.helpers.layers import normal

GEOMETRIES = [
    {},
    {"strides": 2},
    {"strides": (2, 1), "padding": "VALID"},
    {"padding": "CIRCULAR", "kernel_dilation": (1, 2)},
    {"padding": "CIRCULAR", "strides": 2},
    {"padding": 2, "kernel_dilation": 2},
    {"padding": (1, 0)},
    {"padding": ((2, 0), (1, 3)), "strides": (1, 2)},
    {"kernel_size": (1, 4)},
    {"feature_group_count": 2, "use_bias": False},
    {"kernel_size": (4,), "strides": 2, "padding": ((1, 2),)},
    {"kernel_size": (2, 3, 1), "strides": (1, 2, 2), "padding": "CIRCULAR"},
    {"kernel_size": (1, 3, 2), "padding": (0, 1, 2), "feature_group_count": 2},
]


def random_variables(layer, *inputs, scale=0.2):
    """Variables without zeros; at this scale, offsets are about one pixel."""
    shapes = jax.eval_shape(layer.init, jax.random.key(0), *inputs)
    return jax.tree.map(lambda leaf: scale * normal(len(leaf.shape), leaf.shape, leaf.dtype), shapes)


def test_initialised_like_an_ordinary_convolution():
    arguments = {"features": 6, "kernel_size": (3, 3), "bias_init": nn.initializers.normal()}
    layers = DeformConv(**arguments), nn.Conv(**arguments)
    params, expected = (jax.jit(layer.init)(jax.random.key(0), jnp.ones([9, 8, 4]))["params"] for layer in layers)
    assert not any(leaf.any() for leaf in jax.tree.leaves(params.pop("conv_offset")))
    jax.tree.map(np.testing.assert_array_equal, params, expected)


@pytest.mark.parametrize(
    "geometry, bound", [(geometry, 1.5 if number % 3 == 0 else None) for number, geometry in enumerate(GEOMETRIES)]
)
def test_prediction(geometry, bound):
    """The first 2·G·K channels of conv_offset are the offsets, the next G·K the logits of the mask."""
    arguments = {"features": 6, "kernel_size": 3, **geometry}
    layer = DeformConv(**arguments, offset_groups=2, mask_scale=3.0, offset_bound=bound)
    dims = np.size(arguments["kernel_size"]) if arguments["kernel_size"] != 3 else 2
    x = normal(1, [2, *(9, 8, 5)[:dims], 4])
    variables = random_variables(layer, x)
    params = variables["params"]
    y, offset, mask = jax.jit(partial(layer.apply, return_offsets=True))(variables, x)

    kernel_size = params["kernel"].shape[:-2]
    taps = np.prod(kernel_size)
    geometry = {name: getattr(layer, name) for name in ("strides", "padding", "kernel_dilation")}
    convolution = nn.Conv(2 * (dims + 1) * taps, kernel_size, **geometry)
    raw = convolution.apply({"params": params["conv_offset"]}, x)
    raw_offset, logits = raw[..., : 2 * dims * taps], raw[..., 2 * dims * taps :]
    assert jnp.abs(raw_offset).max() > 1
    bounded = bound * np.tanh(raw_offset / bound) if bound else raw_offset
    np.testing.assert_allclose(offset, bounded, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mask, 3 / (1 + np.exp(-logits)), rtol=1e-5)
    expected = getattr(jax_dcn, f"deform_conv{dims}d")(
        x, offset, params["kernel"], params.get("bias"), mask, **geometry, feature_group_count=layer.feature_group_count
    )
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_offset_bound_holds_for_diverging_offsets():
    layer = DeformConv(features=2, kernel_size=3, offset_bound=4.0, return_offsets=True)
    x = normal(1, [6, 6, 3])
    variables = random_variables(layer, x, scale=1e4)
    _, offset, _ = layer.apply(variables, x)
    assert jnp.abs(offset).max() == 4.0
    gradient = jax.jit(jax.grad(lambda variables: layer.apply(variables, x)[0].sum()))(variables)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("limit", [2.0, lambda size: max(size) / 4], ids=["number", "function"])
@pytest.mark.parametrize("image", [(8,), (5, 8), (8, 3, 4)], ids=str)
def test_offset_limit(limit, image):
    """Offsets are clipped, also where strides make the output smaller, and a clipped one has no gradient."""
    layer = DeformConv(features=2, kernel_size=(3,) * len(image), strides=2, return_offsets=True)
    x = normal(1, [*image, 3])
    variables = random_variables(layer, x, scale=1.0)
    raw = layer.apply(variables, x)[1]
    clipped = layer.clone(offset_limit=limit)
    y, offset, mask = clipped.apply(variables, x)
    assert (abs(raw) > 2).any() and (abs(raw) < 2).any()
    np.testing.assert_array_equal(offset, np.clip(raw, -2, 2))
    expected = layer.apply(variables, x, offset, mask)[0]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)

    def sum_of_offsets(variables):
        return clipped.apply(variables, x)[1].sum()

    gradient = jax.jit(jax.grad(sum_of_offsets))(variables)["params"]["conv_offset"]["bias"]
    inside = (abs(raw) < 2).reshape(-1, raw.shape[-1]).sum(0)
    np.testing.assert_allclose(gradient[: raw.shape[-1]], inside)


@pytest.mark.parametrize("options", [{"offset_bound": 0.1}, {"offset_limit": 0.1}], ids=str)
def test_offsets_from_outside(options):
    layer = DeformConv(features=2, kernel_size=3, offset_groups=2, **options)
    x, offset, mask = normal(1, [2, 6, 6, 4]), normal(2, [2, 6, 6, 36]), normal(3, [2, 6, 6, 18])
    variables = layer.init(jax.random.key(0), x, offset, mask)
    assert set(variables["params"]) == {"kernel", "bias"}
    kernel = variables["params"]["kernel"]

    np.testing.assert_array_equal(layer.apply(variables, x, offset, mask), deform_conv2d(x, offset, kernel, mask=mask))
    y, used_offset, used_mask = layer.apply(variables, x, offset, return_offsets=True)
    np.testing.assert_array_equal(y, deform_conv2d(x, offset, kernel))
    np.testing.assert_array_equal(used_offset, offset)
    assert used_mask is None
    with pytest.raises(ValueError, match=r"offset must have 36 channels.* got shape \(2, 6, 6, 18\)"):
        layer.apply(variables, x, offset[..., :18])


def test_kernel_transform():
    x = normal(1, [2, 6, 6, 4])
    plain = DeformConv(features=3, kernel_size=3)
    variables = random_variables(plain, x)
    quantised = plain.clone(kernel_transform=partial(power_of_two, min_exponent=-5))
    params = variables["params"]
    expected = {"params": {**params, "kernel": power_of_two(params["kernel"], min_exponent=-5)}}
    np.testing.assert_array_equal(quantised.apply(variables, x), plain.apply(expected, x))


def test_partitioning_metadata():
    init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, None, None, "model"))
    layer = DeformConv(features=4, kernel_size=3, kernel_init=init)
    x = jnp.ones([5, 5, 3])
    variables = layer.init(jax.random.key(0), x)
    spec = nn.get_partition_spec(variables)["params"]["kernel"]
    assert spec == jax.sharding.PartitionSpec(None, None, None, "model")
    assert layer.apply(variables, x).shape == (5, 5, 4)


def test_a_new_layer_is_an_ordinary_convolution():
    x = normal(1, [2, 8, 9, 4])
    shared = {"strides": 2, "feature_group_count": 2, "bias_init": nnx.initializers.normal(), "rngs": nnx.Rngs(0)}
    conv = nnx.Conv(4, 6, (3, 3), **shared)
    layer = jax_dcn.nnx.DeformConv(4, 6, (3, 3), **shared | {"rngs": nnx.Rngs(0)}, mask_scale=2.0)
    np.testing.assert_array_equal(layer.kernel, conv.kernel)
    np.testing.assert_array_equal(layer.bias, conv.bias)
    np.testing.assert_allclose(layer(x), conv(x), rtol=1e-5, atol=1e-5)


def test_nnx_without_conv_offset():
    layer = jax_dcn.nnx.DeformConv(4, 6, 3, rngs=nnx.Rngs(0))
    layer.conv_offset = None
    assert set(nnx.to_pure_dict(nnx.state(layer))) == {"kernel", "bias"}

    x, offset, mask = normal(1, [6, 6, 4]), normal(2, [6, 6, 18]), normal(3, [6, 6, 9])
    expected = deform_conv2d(x, offset, layer.kernel[...], mask=mask)
    np.testing.assert_array_equal(layer(x, offset, mask), expected)
    np.testing.assert_allclose(nnx.jit(lambda layer: layer(x, offset, mask))(layer), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="offset must be given to a layer whose conv_offset is None"):
        layer(x)


def test_initializers_do_not_tell_layers_of_nnx_apart():
    """Each call of an initializer's factory returns another function, with which nnx.jit would compile again."""
    first, second = (
        nnx.graphdef(jax_dcn.nnx.DeformConv(4, 6, 3, kernel_init=nnx.initializers.normal(), rngs=nnx.Rngs(0)))
        for _ in range(2)
    )
    assert first == second


def test_metadata_of_the_parameters():
    metadata = {"kernel_metadata": {"role": "kernel"}, "bias_metadata": {"role": "bias"}}
    layer = jax_dcn.nnx.DeformConv(4, 6, 3, rngs=nnx.Rngs(0), **metadata)
    assert (layer.kernel.get_metadata("role"), layer.bias.get_metadata("role")) == ("kernel", "bias")


@pytest.mark.platforms("cpu")
def test_sharded_parameters_of_nnx():
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, None, None, "model"))
    with jax.set_mesh(jax.make_mesh((2,), ("model",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:2])):
        layer = jax_dcn.nnx.DeformConv(4, 6, 3, kernel_init=init, rngs=nnx.Rngs(0))
        assert layer.kernel[...].sharding.spec == jax.P(None, None, None, "model")
        assert layer(jnp.ones([2, 6, 6, 4])).shape == (2, 6, 6, 6)


@pytest.mark.parametrize("name, others", [("DeformConv", (6, 3)), ("DeformPSRoIPool", (3,))])
def test_numbers_of_features_of_nnx(name, others):
    with pytest.raises(ValueError, match="in_features must be a positive int, got 0"):
        getattr(jax_dcn.nnx, name)(0, *others, rngs=nnx.Rngs(0))
