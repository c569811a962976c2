from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType

import jax_dcn.linen
from jax_dcn import deform_conv2d
from jax_dcn.nnx import DeformConv
from jax_dcn.quantize import power_of_two


def normal(seed, shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def deforming(layer, scale=0.1):
    """The layer with a random offset convolution instead of zeros."""
    for i, param in enumerate((layer.conv_offset.kernel, layer.conv_offset.bias)):
        param[...] = scale * normal(i, param.shape, param.dtype)
    return layer


def deforming_layer(*, rngs, **arguments):
    return deforming(DeformConv(4, 4, 3, **arguments, rngs=rngs))


def squared(layer, *operands):
    return (layer(*operands) ** 2).sum()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"strides": (2, 1), "padding": "VALID", "kernel_dilation": 2},
        {"padding": "CIRCULAR", "use_bias": False, "modulated": False},
        {"padding": ((2, 0), (1, 1)), "feature_group_count": 2, "offset_groups": 4},
        {"mask_scale": 2.0, "offset_bound": 1.0, "dtype": jnp.bfloat16, "preferred_element_type": jnp.float32},
        {"kernel_transform": power_of_two, "return_offsets": True, "backend": "reference"},
    ],
    ids=lambda arguments: " ".join(arguments) or "defaults",
)
def test_same_as_the_linen_layer(arguments):
    x = normal(1, [2, 8, 9, 4])
    layer = deforming_layer(**arguments, bias_init=nnx.initializers.normal(), rngs=nnx.Rngs(0))
    twin = jax_dcn.linen.DeformConv(features=4, kernel_size=3, **arguments)
    variables = {"params": nnx.to_pure_dict(nnx.state(layer, nnx.Param))}
    jax.tree.map(np.testing.assert_array_equal, layer(x), twin.apply(variables, x))


@pytest.mark.parametrize("arguments", [{"modulated": False}, {"mask_scale": 2.0}], ids=str)
def test_a_new_layer_is_an_ordinary_convolution(arguments):
    x = normal(1, [2, 8, 9, 4])
    shared = {"strides": 2, "feature_group_count": 2, "bias_init": nnx.initializers.normal()}
    layer = DeformConv(4, 6, (3, 3), **shared, **arguments, rngs=nnx.Rngs(0))
    conv = nnx.Conv(4, 6, (3, 3), **shared, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(layer.kernel, conv.kernel)
    np.testing.assert_array_equal(layer.bias, conv.bias)
    np.testing.assert_allclose(layer(x), conv(x), rtol=1e-5, atol=1e-5)


def test_without_conv_offset():
    layer = DeformConv(4, 6, 3, rngs=nnx.Rngs(0))
    layer.conv_offset = None
    assert set(nnx.to_pure_dict(nnx.state(layer))) == {"kernel", "bias"}

    x, offset, mask = normal(1, [6, 6, 4]), normal(2, [6, 6, 18]), normal(3, [6, 6, 9])
    expected = deform_conv2d(x, offset, layer.kernel[...], mask=mask)
    np.testing.assert_array_equal(layer(x, offset, mask), expected)
    np.testing.assert_allclose(nnx.jit(lambda layer: layer(x, offset, mask))(layer), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="offset must be given to a layer whose conv_offset is None"):
        layer(x)


def test_jit_remat_split_and_merge():
    x = normal(1, [2, 6, 6, 4])
    layer = deforming_layer(rngs=nnx.Rngs(0))
    gradient = nnx.grad(squared)(layer, x)
    assert all(leaf.any() for leaf in jax.tree.leaves(gradient))
    compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(compare, nnx.jit(nnx.grad(squared))(layer, x), gradient)
    jax.tree.map(compare, nnx.jit(nnx.grad(nnx.remat(squared)))(layer, x), gradient)
    np.testing.assert_array_equal(nnx.merge(*nnx.split(layer))(x), layer(x))


def test_vmap_and_scan_over_stacked_layers():
    x = normal(1, [2, 6, 6, 4])
    layers = [deforming_layer(rngs=nnx.Rngs(seed)) for seed in range(3)]
    graphdef = nnx.graphdef(layers[0])
    stacked = nnx.merge(graphdef, jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(nnx.state, layers)))
    compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)

    each = nnx.vmap(lambda layer, x: layer(x), in_axes=(0, None))(stacked, x)
    compare(each, jnp.stack([layer(x) for layer in layers]))
    in_turn = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, stacked)
    compare(in_turn, layers[2](layers[1](layers[0](x))))


def test_metadata_of_the_parameters():
    layer = DeformConv(4, 6, 3, rngs=nnx.Rngs(0), kernel_metadata={"role": "kernel"}, bias_metadata={"role": "bias"})
    assert layer.kernel.get_metadata("role") == "kernel"
    assert layer.bias.get_metadata("role") == "bias"


@pytest.mark.platforms("cpu")
def test_sharded_parameters():
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, None, None, "model"))
    with jax.set_mesh(jax.make_mesh((2,), ("model",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:2])):
        layer = DeformConv(4, 6, 3, kernel_init=init, rngs=nnx.Rngs(0))
        assert layer.kernel[...].sharding.spec == jax.P(None, None, None, "model")
        assert layer(jnp.ones([2, 6, 6, 4])).shape == (2, 6, 6, 6)


def test_bfloat16_training():
    x = normal(1, [4, 8, 8, 3])
    target = jnp.roll(x, (1, 2), (1, 2))
    layer = DeformConv(3, 3, 3, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(layer, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(layer, optimizer):
        value, gradient = nnx.value_and_grad(lambda layer: ((layer(x) - target) ** 2).mean())(layer)
        optimizer.update(layer, gradient)
        return value, gradient

    losses = []
    for _ in range(20):
        value, gradient = step(layer, optimizer)
        losses.append(value)
        assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert losses[-1] < 0.8 * losses[0]
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(layer))} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"out_features": 0}, "out_features must be a positive int, got 0"),
        ({"in_features": "4"}, "in_features must be a positive int, got '4'"),
        ({"kernel_size": (3,)}, r"kernel_size must be .* got \(3,\)"),
        ({"kernel_dilation": 0}, "kernel_dilation must be .* got 0"),
        ({"offset_groups": 3}, "in_features must be a multiple of offset_groups=3, got 4"),
        ({"feature_group_count": 3}, "in_features must be a multiple of feature_group_count=3, got 4"),
        ({"feature_group_count": 4}, "out_features must be a multiple of feature_group_count=4, got 6"),
        ({"offset_bound": -1}, "offset_bound must be .* got -1"),
        ({"mask_scale": jnp.inf}, "mask_scale must be a finite number, got inf"),
    ],
)
def test_errors_of_construction(arguments, message):
    with pytest.raises(ValueError, match=message):
        DeformConv(**{"in_features": 4, "out_features": 6, "kernel_size": 3, **arguments}, rngs=nnx.Rngs(0))


def test_errors_of_a_call():
    layer = DeformConv(4, 6, 3, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="x must have in_features=4 channels, got 5"):
        layer(jnp.ones([6, 6, 5]))
    with pytest.raises(ValueError, match="mask was given without an offset"):
        layer(jnp.ones([6, 6, 4]), mask=jnp.ones([6, 6, 9]))
