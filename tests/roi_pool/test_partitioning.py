"""Plain jit over sharded arrays, as in `deform_conv/test_partitioning.py`: the collectives and the values."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_dcn
from tests.helpers.roi_pool.cases import POOLING, Operands, operands, pool
from tests.helpers.sharding import AXIS_TYPES, check, is_split, make_mesh, place

pytestmark = pytest.mark.platforms("cpu")


class Split(NamedTuple):
    """Shardings of operands over a mesh of 4 x 2 devices and of the result, and the gradients that are all-reduced."""

    name: str
    classes: int
    operands: Operands
    result: P
    summed: tuple[str, ...]

    def __str__(self):
        return self.name

    def arrays(self):
        x, rois, offset = operands(lead=(4,))
        return Operands(*map(np.float32, (x, rois, offset[..., : 2 * self.classes])))


BATCH = Operands(P("a"), P("a"), P("a"))
FEATURES = P(None, None, None, None, "b")
SPLITS = [
    Split("batch", 3, BATCH, P("a"), ()),
    Split("regions", 3, Operands(P(), P(None, "b"), P(None, "b")), P(None, "b"), ("x",)),
    Split("batch_and_regions", 3, Operands(P("a"), P("a", "b"), P("a", "b")), P("a", "b"), ("x",)),
    Split("features", 1, Operands(FEATURES, P(), P()), FEATURES, ("offset",)),
    Split("classes", 2, Operands(FEATURES, P(), P(None, None, None, None, "b")), FEATURES, ()),
]


def apply(operands):
    return pool(*operands)


def gradients(operands):
    return jax.grad(lambda operands: jnp.sin(apply(operands)).sum())(operands)


@pytest.mark.parametrize("axis_type", AXIS_TYPES)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_values_and_gradients(split, axis_type):
    """Guards against unnoticed all-gathers, features that use the offsets of another class, and wrong all-reduces.

    The gradient of x may miss the regions of other devices or count them several times.
    """
    mesh, arrays = make_mesh(axis_type), split.arrays()
    placed = place(mesh, arrays, split.operands)
    exchanged, pooled = check(mesh, apply, placed, arrays)
    assert exchanged == []
    assert is_split(pooled, mesh, split.result)
    exchanged, grads = check(mesh, gradients, placed, arrays, 1e-3)
    assert {c.kind for c in exchanged} <= {"all-reduce"}
    own = [getattr(placed, name).sharding.shard_shape(getattr(placed, name).shape) for name in split.summed]
    assert sorted(c.shape for c in exchanged) == sorted(own)
    assert is_split(grads.x, mesh, split.operands.x)
    assert is_split(grads.offset, mesh, split.operands.offset)


@pytest.mark.parametrize("split", SPLITS[2:4], ids=str)
def test_tangents(split):
    """Guards against a forward derivative that gathers although the value does not."""
    mesh, arrays = make_mesh(), split.arrays()

    def push(operands):
        return jax.jvp(apply, (operands,), (jax.tree.map(jnp.cos, operands),))

    exchanged, _ = check(mesh, push, place(mesh, arrays, split.operands), arrays, 1e-3)
    assert exchanged == []


def test_uneven_regions():
    """Guards against: a gradient of x that takes in what XLA fills up unequal parts of the regions with."""
    mesh, arrays = make_mesh(), SPLITS[0].arrays()

    def loss(operands):
        pooled = jax.lax.with_sharding_constraint(apply(operands), NamedSharding(mesh, P(None, "a")))
        return jnp.sin(pooled).sum()

    check(mesh, jax.grad(loss), place(mesh, arrays, [P()] * 3), arrays, 1e-3, whole=gradients)


@pytest.mark.parametrize("spec", [P("a"), P(None, None, None, None, "a")], ids=["images", "features"])
def test_one_feature(spec):
    """Guards against a program that does not compile for one feature of several channels."""
    mesh, arrays = make_mesh(), operands(lead=(4,))._replace(offset=None)
    arrays = Operands(np.float32(arrays.x[..., :4]), np.float32(arrays.rois))
    pooling = dataclasses.replace(POOLING, group_size=(2, 2))

    def gradient(operands):
        return jax.grad(lambda x: jnp.sin(pool(x, operands.rois, pooling=pooling)).sum())(operands.x)

    check(mesh, gradient, place(mesh, arrays, [spec, P(), P()]), arrays, 1e-3)


@pytest.mark.parametrize("name", ["roi_align", "max", "ps_roi_align", "deform_roi_pool"])
def test_the_roi_align_family(name):
    """Regions and features over the devices: only the gradient of x is all-reduced, over the regions."""
    mesh, given = make_mesh(), operands(lead=(4,))
    arrays = Operands(np.float32(given.x[..., :16]), np.float32(given.rois))
    specs = Operands(P("a", None, None, None, "b"), P("a"), P())
    options = {"output_size": 2, "sampling_ratio": 2, "spatial_scale": 0.5}
    function = getattr(jax_dcn, "roi_align" if name == "max" else name)
    if name == "max":
        options["mode"] = "max"
    if name == "deform_roi_pool":
        offset = np.float32(np.random.default_rng(0).normal(size=(4, 6, 2, 2, 2)))
        arrays, specs = arrays._replace(offset=offset), Operands(P("a"), P("a", "b"), P("a", "b"))

    def gradient(arrays):
        present = [array for array in arrays[1:] if array is not None]
        return jax.grad(lambda x: jnp.sin(function(x, *present, **options)).sum())(arrays.x)

    exchanged, _ = check(mesh, gradient, place(mesh, arrays, specs), arrays, 1e-3)
    assert [c.kind for c in exchanged] == (["all-reduce"] if name == "deform_roi_pool" else [])


def test_regions_that_name_their_image():
    """Images are sharded along their own dimension, not along a batch dimension: right, but all images are gathered."""
    mesh, arrays = make_mesh(), Operands(*map(np.float32, operands()))
    exchanged, _ = check(mesh, apply, place(mesh, arrays, [P("b")] * 3), arrays)
    assert [(c.kind, c.shape) for c in exchanged] == [("all-gather", arrays.x.shape)]
