"""ONNX models of layers, run by onnxruntime."""

import jax
import numpy as np
import pytest
from flax import nnx

import jax_dcn.linen
import jax_dcn.nnx
import jax_dcn.quantize
from jax_dcn import interop
from tests.helpers import onnx

pytestmark = pytest.mark.platforms("cpu")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SETTINGS = {
    "default": {},
    "v1": dict(modulated=False, use_bias=False),
    "groups": dict(offset_groups=2, feature_group_count=4, strides=2, padding=((0, 1), (2, 0)), kernel_dilation=(1, 2)),
    "bounded": dict(offset_bound=1.5, mask_scale=2.0, padding="VALID"),
    "bounded v1": dict(offset_bound=1.5, modulated=False),
    "clipped": dict(offset_limit=lambda size: max(size) / 8),
    "clipped v1": dict(offset_limit=1.25, modulated=False),
    "quantized": dict(kernel_transform=jax_dcn.quantize.power_of_two),
}


def run(model, *images):
    return onnx.run(model, *(np.ascontiguousarray(x.transpose(0, 3, 1, 2)) for x in images))[0].transpose(0, 2, 3, 1)


def random(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def made_up(tree):
    """Random parameters, because a new layer samples the regular grid."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [0.3 * random(*leaf.shape) for leaf in leaves])


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_layers(settings):
    x = random(2, 9, 10, 8)
    layer = jax_dcn.linen.DeformConv(12, (3, 2), **settings)
    variables = made_up(layer.init(jax.random.key(0), x))
    y, offset, _ = layer.apply(variables, x, return_offsets=True)
    assert np.abs(offset).max() > 1
    model = interop.to_onnx(layer, variables, image_size=(9, 10))
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 22)]
    np.testing.assert_allclose(run(model, x), y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("modulated", [True, False])
def test_given_offsets(modulated):
    x, offset, mask = random(1, 7, 8, 4), random(1, 7, 8, 18), random(1, 7, 8, 9)
    layer = jax_dcn.nnx.DeformConv(4, 6, 3, padding=1, modulated=modulated, rngs=nnx.Rngs(0))
    layer.conv_offset = None
    inputs = dict(x=x, offset=offset) | (dict(mask=mask) if modulated else {})
    np.testing.assert_allclose(run(interop.to_onnx(layer), *inputs.values()), layer(**inputs), rtol=1e-4, atol=1e-4)


def test_any_image_size():
    layer = jax_dcn.nnx.DeformConv(4, 6, 3, strides=2, padding=1, rngs=nnx.Rngs(0))
    model = interop.to_onnx(layer)
    for x in (random(1, 7, 8, 4), random(3, 12, 5, 4)):
        np.testing.assert_allclose(run(model, x), layer(x), rtol=1e-4, atol=1e-4)


def test_what_onnx_cannot_express():
    def layer(**settings):
        return jax_dcn.nnx.DeformConv(4, 6, 3, **settings, rngs=nnx.Rngs(0))

    def refused(message, *arguments, error=ValueError, **options):
        with pytest.raises(error, match=message):
            interop.to_onnx(*arguments, **options)

    refused("image_size must be given with padding='SAME'", layer())
    refused("image_size must be given with an offset_limit that is a function", layer(padding=1, offset_limit=max))
    refused("neither circular nor negative, got 'CIRCULAR'", layer(padding="CIRCULAR"), image_size=(8, 8))
    refused("neither circular nor negative, got -1", layer(padding=-1))
    refused("image_size must be a positive int or a pair", layer(), image_size=(8, 8, 3))
    of_linen, others = jax_dcn.linen.DeformConv(6, 3), {"params": {"layer1_0": {"kernel": np.ones((3, 3, 4, 6))}}}
    refused("must be those of the layer alone, with a kernel, got layer1.0.weight", of_linen, others)
    refused("layer must be a DeformConv .* got Linear", nnx.Linear(2, 2, rngs=nnx.Rngs(0)), error=TypeError)
    refused("variables must be given", of_linen, error=TypeError)
    refused("variables must be None", layer(), {}, error=TypeError)
