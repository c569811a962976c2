"""The operator in the place of keras-hub's: its arguments, the layers it is given to, and the layer of keras-hub."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from examples.keras_d_fine import sample, use_kernels
from tests.helpers.aggregation import numpy_reference

SHAPES, POINTS, QUERIES, HEADS, CHANNELS = [(4, 6), (2, 3)], [2, 1], 5, 2, 4
PIXELS = [height * width for height, width in SHAPES]


def arrays(dtype="float32"):
    """The value, the locations, of which some are outside, and the weights, as keras-hub's layer passes them."""
    random = np.random.default_rng(0)
    value = random.normal(size=(2, sum(PIXELS), HEADS, CHANNELS))
    locations = random.uniform(-0.2, 1.2, (2, QUERIES, HEADS, sum(POINTS), 2))
    weights = random.uniform(size=(2, QUERIES, HEADS, sum(POINTS)))
    return [jnp.asarray(array, dtype) for array in (value, locations, weights)]


def call(value, locations, weights, method="default"):
    rest = POINTS, PIXELS, SHAPES, len(SHAPES), QUERIES, method
    return sample(value, jnp.array(SHAPES), locations, weights, *rest)


@pytest.mark.parametrize(
    "method, our_method, dtype, tolerance",
    [("default", "bilinear", "bfloat16", 2e-2), ("discrete", "discrete", "float32", 1e-5)],
)
def test_arguments_of_keras_hub(method, our_method, dtype, tolerance):
    operands = arrays(dtype)
    y = call(*operands, method)
    assert (y.shape, y.dtype) == ((2, QUERIES, HEADS * CHANNELS), dtype)
    for image, found in enumerate(y.astype("float32")):
        operands_of_image = (np.asarray(array[image], "float64") for array in operands)
        attend = numpy_reference.multi_scale_deformable_attention
        expected, *_ = attend(*operands_of_image, np.ones(found.shape), SHAPES, POINTS, our_method)
        assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_wrong_models_and_backends_are_errors():
    with pytest.raises(ValueError, match="SimpleNamespace has no layer"):
        use_kernels(SimpleNamespace(_flatten_layers=lambda: [SimpleNamespace()]))
    with pytest.raises(TypeError, match="ndarray: set KERAS_BACKEND=jax"):
        call(*map(np.asarray, arrays()))


@pytest.mark.parametrize("method", ["default", "discrete"])
def test_layer_of_keras_hub(method, monkeypatch):
    """Values and gradients before and after `use_kernels`."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    models = pytest.importorskip("keras_hub.src.models.d_fine.d_fine_attention")
    width = HEADS * CHANNELS
    layer = models.DFineMultiscaleDeformableAttention(width, HEADS, len(SHAPES), 0.5, method, POINTS, QUERIES, SHAPES)
    layer.build((2, QUERIES, width))
    keys = jax.random.split(jax.random.key(0), 5)
    layer.sampling_offsets.kernel.assign(jax.random.normal(keys[0], layer.sampling_offsets.kernel.shape))
    layer.attention_weights.kernel.assign(jax.random.normal(keys[1], layer.attention_weights.kernel.shape))
    queries = jax.random.normal(keys[2], (2, QUERIES, width))
    pixels = jax.random.normal(keys[3], (2, sum(PIXELS), width))
    boxes = jax.random.uniform(keys[4], (2, QUERIES, 1, 4))
    weights, rest = ([v.value for v in some] for some in (layer.trainable_variables, layer.non_trainable_variables))

    def loss(weights, queries, pixels, boxes):
        (y, _), _ = layer.stateless_call(weights, rest, queries, pixels, boxes, jnp.array(SHAPES))
        return jnp.sum(jnp.sin(y)), y

    def results():
        return jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(weights, queries, pixels, boxes)

    expected = results()
    use_kernels(layer)
    jax.tree.map(lambda one, other: assert_allclose(one, other, rtol=1e-4, atol=1e-5), results(), expected)
