"""Compares our models with those of mmdet and mmcv, run by torch, with the same checkpoint."""

import pathlib

import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_dcn.linen
import jax_dcn.nnx
from examples.resnet import ResNet
from jax_dcn import interop
from tests.helpers import checkpoints

GOLDEN = pathlib.Path(__file__).parent / "golden"
# The names in other libraries of mmcv's `conv2.weight`, `conv2.bias` and `conv2.conv_offset.…`.
SPELLINGS = {
    "mmcv": {},
    "detectron2": {"conv2.conv_offset": "conv2_offset"},
    "dcnv2": {"conv2.conv_offset": "conv2.conv_offset_mask"},
    "maskrcnn_benchmark": {
        "conv2.conv_offset": "conv2.offset",
        "conv2.weight": "conv2.conv.weight",
        "conv2.bias": "conv2.conv.bias",
    },
}


@pytest.mark.parametrize(
    ("name", "modulated", "offset_groups"), [pytest.param("DCN", False, 4, marks=pytest.mark.slow), ("DCNv2", True, 1)]
)
@pytest.mark.slow
def test_mmdet_backbone(name, modulated, offset_groups):
    model = ResNet(modulated=modulated, offset_groups=offset_groups)
    images = checkpoints.image()
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)
    names = interop.to_torch(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes), module="backbone")
    # A checkpoint of a whole detector. The golden file was made with its backbone only, without the prefix.
    checkpoint = {
        f"backbone.{key}": array
        for key, array in checkpoints.fill({k.removeprefix("backbone."): v.shape for k, v in names.items()}).items()
    } | {"neck.lateral_convs.0.conv.weight": np.ones((256, 256, 1, 1)), "backbone.bn1.num_batches_tracked": np.array(3)}

    variables = interop.from_torch(checkpoint, shapes, module="backbone")
    features = jax.jit(model.apply)(variables, images)
    with np.load(GOLDEN / f"mmdet_resnet50_{name}.npz") as file:
        expected = dict(file)
    for stage, feature in enumerate(features):
        theirs = expected[f"stage{stage}"].transpose(0, 2, 3, 1)
        np.testing.assert_allclose(feature[..., ::32], theirs, rtol=0, atol=5e-5 * theirs.max())


def renamed(golden, style):
    state = {f"conv2.{key}": golden[key] for key in golden if key not in ("x", "y", "made_by")}
    for ours, theirs in SPELLINGS[style].items():
        state = {key.replace(ours, theirs): array for key, array in state.items()}
    return state


@pytest.mark.parametrize("style, api", [*((style, "linen") for style in SPELLINGS), ("mmcv", "nnx")])
@pytest.mark.parametrize("name", ["DCN", "DCNv2"])
def test_mmcv_layer(name, style, api):
    with np.load(GOLDEN / f"mmcv_{name}.npz") as file:
        golden = dict(file)
    settings = dict(strides=2, padding=2, kernel_dilation=2, feature_group_count=2, offset_groups=4)
    settings |= dict(modulated=name == "DCNv2", use_bias="bias" in golden)
    state = renamed(golden, style)
    if api == "linen":
        layer = jax_dcn.linen.DeformConv(6, (3, 3), **settings)
        like = jax.eval_shape(layer.init, jax.random.key(0), golden["x"])
        y = layer.apply(interop.from_torch(state, like, module="conv2"), golden["x"])
    else:
        layer = jax_dcn.nnx.DeformConv(8, 6, (3, 3), **settings, rngs=flax.nnx.Rngs(0))
        like = layer
        layer = interop.from_torch(state, layer, module="conv2")
        y = layer(golden["x"])
        again = flax.nnx.merge(flax.nnx.graphdef(like), interop.from_torch(state, flax.nnx.state(like), module="conv2"))
        np.testing.assert_array_equal(again(golden["x"]), y)
    np.testing.assert_allclose(y, golden["y"].transpose(0, 2, 3, 1), rtol=1e-4, atol=1e-4)

    filled = layer if api == "nnx" else interop.from_torch(state, like, module="conv2")
    back = interop.to_torch(filled, style=style, module="conv2")
    assert back.keys() == state.keys()
    for key, array in back.items():
        np.testing.assert_array_equal(array, state[key])
