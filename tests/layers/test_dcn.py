"""What only `DCNv3` and `DCNv4` have: windows, packed offsets and masks, norms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_dcn
import jax_dcn.linen
import jax_dcn.nnx
from jax_dcn import interop
from tests.helpers.layers import (
    CHANNELS,
    CONVOLUTION,
    assert_close,
    both_interfaces,
    build,
    image,
    linen_layer,
    randomized,
)


@pytest.mark.parametrize("name", ["DCNv3", "DCNv4"])
@pytest.mark.parametrize("arguments", [{"kernel_size": (2, 3), "kernel_dilation": (1, 2)}, {"kernel_size": 4}], ids=str)
def test_even_kernels_keep_the_size(name, arguments):
    layer, (x,) = build(linen_layer, name, **arguments)
    assert layer.apply(layer.params, x).shape == x.shape


def test_dcnv4_step_by_step():
    options = {"remove_center": True, "offset_scale": 1.5, "center_feature_scale": True, "dw_kernel_size": 3}
    layer, (x,) = build(linen_layer, "DCNv4", **options, use_projections=False, kernel_dilation=2)
    params = randomized(layer.params)
    y, offset, mask = jax.jit(partial(layer.apply, return_offsets=True))(params, x)

    dw = params["offset_mask_dw"]
    depthwise = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": CHANNELS}
    features = jax.lax.conv_general_dilated(x, dw["kernel"], (1, 1), "SAME", **depthwise)
    packed = (features + dw["bias"]) @ params["offset_mask"]["kernel"] + params["offset_mask"]["bias"]
    assert packed.shape[-1] == 48
    by_group = packed.reshape(2, 5, 6, 2, 24)
    assert_close(offset, by_group[..., :16].reshape(2, 5, 6, 32))
    assert_close(mask, by_group[..., 16:].reshape(2, 5, 6, 16))
    window = {"kernel_size": 3, "kernel_dilation": 2, "padding": 2, "offset_scale": 1.5, "remove_center": True}
    sampled = jax_dcn.dcnv3(x, offset, mask, **window, groups=2)
    scale = params["center_feature_scale_proj"]
    weight = jnp.repeat(jax.nn.sigmoid(sampled @ scale["kernel"] + scale["bias"]), 4, -1)
    assert_close(y, sampled * (1 - weight) + x * weight)


@both_interfaces
@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm"])
def test_norms_of_a_shifted_input(make, norm):
    """The variance must not be the difference of two large means, which cancels."""
    x = image()[0] + 1000
    options = CONVOLUTION | {"norm": norm, "return_offsets": True}
    train = {"use_running_average": False, "mutable": ["batch_stats"]}
    layer = jax_dcn.linen.DCNv3(**options)
    variables = layer.init(jax.random.key(0), x, use_running_average=False)
    same = jnp.zeros((3, 3, 1, CHANNELS)).at[1, 1].set(1)  # so that the variance is that of x
    params = randomized(variables["params"]) | {"dw_conv": {"kernel": same, "bias": jnp.zeros(CHANNELS)}}
    variables = {**variables, "params": params}
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), variables)
        (_, expected, _), _ = layer.apply(wide, jnp.asarray(np.asarray(x), jnp.float64), **train)
    if make is linen_layer:
        (_, offset, _), _ = layer.apply(variables, x, **train)
    else:
        other = jax_dcn.nnx.DCNv3(CHANNELS, **options, rngs=nnx.Rngs(0))
        _, offset, _ = interop.from_torch(interop.to_torch(variables), other)(x)
    np.testing.assert_allclose(offset, expected, atol=2e-3)


class TestBatchNorm:
    ARGUMENTS = CONVOLUTION | {"norm": "batch_norm"}

    def layers(self):
        """The same layer in Linen, as variables and layer, and in NNX."""
        x, layer = image()[0], jax_dcn.linen.DCNv3(**self.ARGUMENTS)
        variables = jax.jit(partial(layer.init, use_running_average=False))(jax.random.key(0), x)
        variables = {**variables, "params": randomized(variables["params"])}
        other = jax_dcn.nnx.DCNv3(CHANNELS, **self.ARGUMENTS, rngs=nnx.Rngs(0))
        return x, layer, variables, interop.from_torch(interop.to_torch(variables), other)

    def test_training_and_evaluation(self):
        x, layer, variables, other = self.layers()
        train = jax.jit(partial(layer.apply, use_running_average=False, mutable=["batch_stats"]))
        y, updates = train(variables, x)
        assert_close(other(x), y)
        statistics = updates["batch_stats"]["dw_norm"]
        assert abs(statistics["mean"]).max() > 1e-3
        assert_close({"mean": other.dw_norm.mean[...], "var": other.dw_norm.var[...]}, statistics)
        evaluated = layer.apply({**variables, **updates}, x, use_running_average=True)
        assert_close(other(x, use_running_average=True), evaluated)
        other.eval()
        assert_close(other(x), evaluated)
        attribute = jax_dcn.linen.DCNv3(**self.ARGUMENTS, use_running_average=True)
        np.testing.assert_array_equal(attribute.apply({**variables, **updates}, x), evaluated)
        trained, _ = attribute.apply(variables, x, use_running_average=False, mutable=["batch_stats"])
        assert_close(trained, y)
        with pytest.raises(ValueError, match="use_running_average"):
            layer.apply(variables, x)

    def test_names(self):
        _, _, variables, other = self.layers()
        for tree in (variables, other):
            state = interop.to_torch(tree, module="levels.0.blocks.1.dcn")
            norm = {key.rpartition(".")[2] for key in state if key.startswith("levels.0.blocks.1.dcn.dw_conv.1.0.")}
            assert norm == {"weight", "bias", "running_mean", "running_var"}

    @both_interfaces
    def test_a_checkpoint_of_the_other_norm_is_an_error(self, make):
        _, _, variables, _ = self.layers()
        batch_norm = interop.to_torch(variables)
        params = build(make, "DCNv3")[0].params
        layer_norm = {key.replace("dw_conv.1.0", "dw_conv.1.1"): array for key, array in batch_norm.items()}
        for state in (batch_norm, layer_norm):
            with pytest.raises(ValueError, match=r"dw_conv.1...running_mean.* is of a batch norm.* for dw_norm"):
                interop.from_torch(state, params, strict=False)
        without = {key: array for key, array in layer_norm.items() if "running" not in key}
        interop.from_torch(without, params)
        with pytest.raises(ValueError, match=r"missing 'dw_conv.1.1.running_mean'"):
            interop.from_torch(without, variables)
