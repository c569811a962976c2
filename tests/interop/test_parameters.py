"""How parameters are found, and the errors if they are not."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_dcn import interop
from jax_dcn.linen import DeformConv, DeformPSRoIPool
from jax_dcn.nnx import DeformConv as NnxDeformConv

pytestmark = pytest.mark.platforms("cpu")


class Model(nn.Module):
    """Layers of all kinds, in lists and a Sequential."""

    def setup(self):
        self.layer1 = [DeformConv(8, (3, 3))]
        self.bn1 = nn.BatchNorm(use_running_average=True)
        self.head = nn.Sequential([nn.Conv(8, (1, 3)), nn.relu, nn.Dense(8)])
        self.classes = nn.Embed(5, 8)

    def __call__(self, x):
        x = self.head(self.bn1(self.layer1[0](x)))
        return self.classes(jnp.arange(5)) + x.mean((1, 2))[..., None, :]


@pytest.fixture
def variables():
    return Model().init(jax.random.key(0), jnp.ones((1, 8, 8, 4)))


def random(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def parameters(**settings):
    return DeformConv(8, (3, 3), **settings).init(jax.random.key(0), jnp.ones((1, 8, 8, 4)))


def test_names_and_layouts(variables):
    state = interop.to_torch(variables, module="model")
    assert {key: array.shape for key, array in state.items()} == {
        "model.bn1.running_mean": (8,),
        "model.bn1.running_var": (8,),
        "model.bn1.weight": (8,),
        "model.bn1.bias": (8,),
        "model.classes.weight": (5, 8),
        "model.head.0.weight": (8, 8, 1, 3),
        "model.head.0.bias": (8,),
        "model.head.2.weight": (8, 8),
        "model.head.2.bias": (8,),
        "model.layer1.0.weight": (8, 4, 3, 3),
        "model.layer1.0.bias": (8,),
        "model.layer1.0.conv_offset.weight": (27, 4, 3, 3),
        "model.layer1.0.conv_offset.bias": (27,),
    }
    # As torch.from_numpy and safetensors require.
    assert all(array.flags.c_contiguous and array.flags.writeable for array in state.values())
    kernel = variables["params"]["head"]["layers_0"]["kernel"]
    np.testing.assert_array_equal(state["model.head.0.weight"][5, 3, 0, 2], kernel[0, 2, 3, 5])
    state = {key: random(array.shape, i) for i, (key, array) in enumerate(state.items())}
    other = {"models.weight": np.ones(2)}  # not of this module
    jax.tree.map(
        np.testing.assert_array_equal,
        *(interop.from_torch(s, variables, module="model") for s in (state, state | other)),
    )
    again = interop.to_torch(interop.from_torch(state, variables, module="model"), module="model")
    jax.tree.map(np.testing.assert_array_equal, again, state)


def test_what_does_not_fit(variables):
    state = interop.to_torch(variables)
    state["bn1.num_batches_tracked"] = np.array(7)
    interop.from_torch(state, variables)
    del state["layer1.0.conv_offset.bias"], state["bn1.running_var"]
    state["fc.weight"] = np.ones(3)
    message = r"missing 'bn1.running_var', 'layer1.0.conv_offset.bias'; unexpected 'fc.weight'"
    with pytest.raises(ValueError, match=message + r" \(strict=False"):
        interop.from_torch(state, variables)
    changed = jax.tree.map(lambda leaf: leaf + 1, variables)
    with pytest.warns(UserWarning, match=message):
        kept = interop.from_torch(state, changed, strict=False)
    np.testing.assert_array_equal(kept["batch_stats"]["bn1"]["var"], 2)
    np.testing.assert_array_equal(kept["batch_stats"]["bn1"]["mean"], 0)
    with pytest.raises(ValueError, match=r"lacks 'bn1.running_var', and like has no value"):
        interop.from_torch(state, jax.eval_shape(lambda: variables), strict=False)
    with pytest.raises(TypeError, match="state_dict must be a mapping of names to arrays, got list"):
        interop.from_torch([], variables)
    with pytest.raises(TypeError, match=r"like must be a tree of arrays.* got Model"):
        interop.from_torch(state, Model())
    with pytest.raises(TypeError, match=r"like must be a tree of arrays.* got ndarray"):
        interop.from_torch(state, np.ones(2))


def test_a_missing_name_is_spelt_as_its_neighbours():
    like = {"encoder": {"layers_1": {"scale": jnp.ones(2), "bias": jnp.ones(2)}}}
    for module in ("encoder.1", "encoder.layers.1", "encoder.layers_1"):
        with pytest.raises(ValueError, match=f"missing '{module}.bias'; unexpected nothing"):
            interop.from_torch({f"{module}.weight": np.ones(2)}, like)
    with pytest.raises(ValueError, match=r"missing 'encoder.1.bias', 'encoder.1.weight'; unexpected nothing"):
        interop.from_torch({}, like)


@pytest.mark.parametrize("strict", [True, False])
def test_wrong_module(variables, strict):
    """If the module has another name, nothing is found; that is always an error."""
    state = interop.to_torch(variables, module="module.backbone")
    with pytest.raises(ValueError, match=r"nothing of module='backbone': did you mean module.backbone\?"):
        interop.from_torch(state, variables, module="backbone", strict=strict)
    with pytest.raises(ValueError, match=r"nothing of module='neck': it has 'module.backbone.bn1.running_mean', "):
        interop.from_torch(state, variables, module="neck", strict=strict)


def test_one_array_for_two_parameters():
    with pytest.raises(ValueError, match="'weight' would be both kernel and scale"):
        interop.from_torch({"weight": np.ones((2, 2))}, {"kernel": np.ones((2, 2)), "scale": np.ones((2, 2))})


def test_offsets_of_a_layer_that_has_none():
    x, offset = jnp.ones((1, 8, 8, 4)), jnp.ones((1, 8, 8, 18))
    layer = DeformConv(8, (3, 3))
    state = interop.to_torch(layer.init(jax.random.key(0), x), style="detectron2", module="res3.0.conv2")
    with pytest.raises(ValueError, match=r"unexpected 'res3.0.conv2_offset.bias', 'res3.0.conv2_offset.weight'"):
        interop.from_torch(state, layer.init(jax.random.key(0), x, offset), module="res3.0.conv2")


def test_names_of_their_own():
    """A parameter named scale may belong to other layers than norms."""
    found = interop.from_torch({"scales.0.scale": np.full(1, 3.0)}, {"scales_0": {"scale": np.ones(1)}})
    assert found["scales_0"]["scale"] == 3


def test_ambiguous_names():
    params = parameters()
    state = interop.to_torch(params, module="conv2") | interop.to_torch(params, module="conv2", style="detectron2")
    with pytest.raises(ValueError, match=r"'conv2.conv_offset.bias' and 'conv2_offset.bias', which name the same"):
        interop.from_torch(state, params, module="conv2")


@pytest.mark.parametrize("modulated", [True, False])
def test_advice_on_masks(modulated):
    state = interop.to_torch(parameters(modulated=not modulated))
    with pytest.raises(ValueError, match=f"the layer should have modulated={not modulated}"):
        interop.from_torch(state, parameters(modulated=modulated))


def test_wrong_shape():
    params = nn.Conv(8, (3, 3)).init(jax.random.key(0), jnp.ones((1, 8, 8, 4)))
    state = {"weight": np.ones((8, 4, 5, 3)), "bias": np.ones(8)}
    message = r"'weight' has shape \(8, 4, 5, 3\), of which kernel would get \(5, 3, 4, 8\), but it must be \(3, 3, 4"
    with pytest.raises(ValueError, match=message):
        interop.from_torch(state, params)


def test_torchvision_names():
    """Its layer has no branch; ours has none if offsets are always passed."""
    state = {"weight": random((8, 4, 3, 3)), "bias": random(8)}
    x, offset = random((1, 6, 6, 4)), random((1, 6, 6, 18))
    layer = DeformConv(8, (3, 3))
    variables = interop.from_torch(state, layer.init(jax.random.key(0), x, offset))
    nnx_layer = NnxDeformConv(4, 8, (3, 3), rngs=nnx.Rngs(0))
    nnx_layer.conv_offset = None
    nnx_layer = interop.from_torch(state, nnx_layer)
    np.testing.assert_array_equal(nnx_layer(x, offset), layer.apply(variables, x, offset))
    assert interop.to_torch(variables).keys() == interop.to_torch(nnx_layer).keys() == state.keys()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_dtypes(dtype):
    """Parameters get the dtype of those that they replace, for any dtype in the state dict."""
    like = parameters(param_dtype=dtype)
    state = {key: array.astype(np.float64) for key, array in interop.to_torch(like).items()}
    variables = interop.from_torch(state, jax.eval_shape(lambda: like))
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype(dtype)}


def test_random_state_is_kept():
    model = nnx.Sequential(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1)))
    filled = interop.from_torch({"0.weight": random((4, 4)), "0.bias": random(4)}, model)
    assert filled.layers[1].rngs.key[...] == model.layers[1].rngs.key[...]
    shapes = nnx.eval_shape(lambda: nnx.Dropout(0.5, rngs=nnx.Rngs(1)))
    with pytest.raises(ValueError, match="like must have a value for rngs/count"):
        interop.from_torch({}, shapes)


class Tensor:
    """The attributes of torch's tensors that the package uses, if torch is not installed."""

    def __init__(self, array):
        self.array, self.dtype = array, "torch.float32"

    def detach(self):
        return self

    cpu = detach

    def numpy(self):
        return self.array


def test_tensors(variables):
    state = interop.to_torch(variables)
    tensors = {name: Tensor(array) for name, array in state.items()}
    jax.tree.map(np.testing.assert_array_equal, interop.from_torch(tensors, variables), variables)


def test_names_that_cannot_be_written():
    params = parameters()
    with pytest.raises(ValueError, match="module must be given in the style 'detectron2'"):
        interop.to_torch(params, style="detectron2")
    with pytest.raises(ValueError, match="scale and another parameter would both be called 'weight'"):
        interop.to_torch({"kernel": np.ones((2, 2)), "scale": np.ones(2)})


def test_pooling_with_a_convolution():
    """The branch of R-FCN is an ordinary convolution, whatever the style."""
    pool = DeformPSRoIPool(3, group_size=3)
    params = pool.init(jax.random.key(0), jnp.ones((1, 8, 8, 9)), jnp.zeros((1, 5)))
    state = interop.to_torch(params, module="pool")
    assert state["pool.conv_offset.weight"].shape == (18, 9, 1, 1)
    jax.tree.map(np.testing.assert_array_equal, interop.from_torch(state, params, module="pool"), params)


@pytest.mark.parametrize("kernel_size", [(3,), (2, 3), (1, 2, 3)])
@pytest.mark.parametrize("modulated, has_bias", [(True, False), (False, True)])
def test_generators_of_tvdcn(kernel_size, modulated, has_bias):
    """Theirs are two convolutions, which have a group of channels for each offset group."""
    dims, groups, channels = len(kernel_size), 2, 4
    taps, rng = int(np.prod(kernel_size)), np.random.default_rng(0)
    names = {"offset_generator": dims, **({"mask_generator": 1} if modulated else {})}
    state = {"conv.weight": rng.normal(size=(6, channels, *kernel_size))}
    for name, count in names.items():
        outputs = groups * taps * count
        state[f"conv.{name}.weight"] = rng.normal(size=(outputs, channels // groups, *kernel_size))
        if has_bias:
            state[f"conv.{name}.bias"] = rng.normal(size=outputs)
    x = jnp.asarray(rng.normal(size=(2, *(5, 4, 3)[:dims], channels)), jnp.float32)
    layer = DeformConv(6, kernel_size, offset_groups=groups, modulated=modulated, mask_scale=2.0, use_bias=False)
    like = jax.eval_shape(layer.init, jax.random.key(0), x)
    _, offset, mask = layer.apply(interop.from_torch(state, like, module="conv"), x, return_offsets=True)

    def generated(name):
        weight = jnp.asarray(state[f"conv.{name}.weight"], jnp.float32)
        places = ("NWC", "OIW", "NWC"), ("NHWC", "OIHW", "NHWC"), ("NDHWC", "OIDHW", "NDHWC")
        options = {"feature_group_count": groups, "dimension_numbers": places[dims - 1]}
        found = jax.lax.conv_general_dilated(x, weight, (1,) * dims, "SAME", **options)
        return found + state.get(f"conv.{name}.bias", 0)

    np.testing.assert_allclose(offset, generated("offset_generator"), rtol=1e-5, atol=1e-5)
    if modulated:
        np.testing.assert_allclose(mask, 2 * jax.nn.sigmoid(generated("mask_generator")), rtol=1e-5, atol=1e-5)
    else:
        assert mask is None
    message = "offsets of two groups" if dims == 1 and not modulated else "conv must have one offset group"
    with pytest.raises(ValueError, match=message):
        interop.to_torch(interop.from_torch(state, like, module="conv"), style="tvdcn", module="conv")


TWO_CONVOLUTIONS = {  # the names of the layer's own parameters, and of the convolutions for offsets and masks
    "tvdcn": ("", "offset_generator.", "mask_generator."),
    "birefnet": ("regular_conv.", "offset_conv.", "modulator_conv."),
}


@pytest.mark.parametrize("module", ["conv", ""])
@pytest.mark.parametrize("modulated", [True, False])
@pytest.mark.parametrize("style", TWO_CONVOLUTIONS)
def test_two_convolutions_and_back(style, modulated, module):
    layer = DeformConv(6, (1, 2, 3), modulated=modulated, use_bias=False)
    variables = layer.init(jax.random.key(0), jnp.ones((3, 4, 5, 4)))
    variables = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(leaf.size), leaf.shape), variables)
    state = interop.to_torch(variables, style=style, module=module)
    own, offsets, masks = (f"{module}.{name}" if module else name for name in TWO_CONVOLUTIONS[style])
    expected = {f"{own}weight": (6, 4, 1, 2, 3), f"{offsets}weight": (18, 4, 1, 2, 3), f"{offsets}bias": (18,)}
    expected |= {f"{masks}weight": (6, 4, 1, 2, 3), f"{masks}bias": (6,)} if modulated else {}
    assert {name: array.shape for name, array in state.items()} == expected
    jax.tree.map(np.testing.assert_array_equal, interop.from_torch(state, variables, module=module), variables)
