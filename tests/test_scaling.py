"""A Flax model with both layers, trained on several devices only by sharding its arrays."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_dcn
from benchmarks.lowering.hlo import collectives
from tests.helpers.deform_conv.cases import assert_close
from tests.helpers.sharding import make_mesh

pytestmark = pytest.mark.platforms("cpu")

IMAGES, REGIONS, CLASSES = 8, 4, 3
POOLING = {"output_size": 2, "group_size": 2, "spatial_scale": 0.5, "sample_per_part": 2}


class Model(nn.Module):
    @nn.compact
    def __call__(self, images, rois):
        x = nn.relu(nn.Conv(8, (3, 3), (2, 2))(images))
        x = nn.relu(jax_dcn.linen.DeformConv(8, (3, 3), modulated=True)(x))
        maps = nn.Conv(CLASSES * 4, (1, 1))(x)
        # Each image is a batch of its own, so that it is not gathered for the regions of another image.
        pooled = jax_dcn.linen.DeformPSRoIPool(**POOLING)(maps[:, None], rois, x[:, None])
        return pooled.mean((-3, -2))


def data():
    rng = np.random.default_rng(0)
    images = rng.normal(size=(IMAGES, 16, 12, 3)).astype(np.float32)
    corners = np.sort(rng.uniform(0, 12, (IMAGES, REGIONS, 2, 2)), -2).reshape(IMAGES, REGIONS, 4)
    rois = np.concatenate([np.zeros((IMAGES, REGIONS, 1)), corners], -1).astype(np.float32)
    return images, rois, rng.integers(0, CLASSES, (IMAGES, REGIONS))


@pytest.fixture(scope="module")
def params():
    return jax.jit(Model().init)(jax.random.key(0), *data()[:2])


def loss(params, images, rois, labels):
    logits = jax.nn.log_softmax(Model().apply(params, images, rois))
    return -jnp.take_along_axis(logits, labels[..., None], -1).mean()


@jax.jit
def step(params, *batch):
    value, gradient = jax.value_and_grad(loss)(params, *batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value


@pytest.mark.parametrize("axis_type", ["Auto", "Explicit"])
def test_data_parallel_step(axis_type, params):
    """A step communicates only the gradients, each once. Guards against: activations gathered by a layer."""
    mesh = make_mesh(axis_type, (8,))
    placed = jax.device_put(params, NamedSharding(mesh, P()))
    batch = jax.device_put(data(), NamedSharding(mesh, P("a")))
    exchanged = collectives(step.lower(placed, *batch).compile())
    assert {c.kind for c in exchanged} == {"all-reduce"}
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert sum(c.bytes for c in exchanged) == 4 * (parameters + 1)  # and the loss
    assert_close(step(placed, *batch), step(params, *data()), 1e-4, 1e-5)


def features_of(leaf):
    """Shards by output features, if two devices can share them."""
    return P(*[None] * (leaf.ndim - 1), "b") if leaf.shape[-1] % 2 == 0 else P()


@pytest.mark.parametrize("name", ["rows", "features"])
def test_other_splits(name, params):
    """The same step on images that are also split by rows, or with parameters split by features. Guards against: a
    layer that is right for only one sharding."""
    mesh = make_mesh()
    specs = jax.tree.map(features_of if name == "features" else lambda leaf: P(), params)
    placed = jax.tree.map(lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec)), params, specs)
    images, *rest = data()
    images = jax.device_put(images, NamedSharding(mesh, P("a", "b") if name == "rows" else P("a")))
    rest = jax.device_put(rest, NamedSharding(mesh, P("a")))
    assert_close(step(placed, images, *rest), step(params, *data()), 1e-4, 1e-5)
