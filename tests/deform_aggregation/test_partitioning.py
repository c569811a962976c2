"""Plain jit over sharded arrays, as in `deform_conv/test_partitioning.py`: the collectives and the values."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.helpers.deform_aggregation.cases import Attention, Convolution, Operands
from tests.helpers.sharding import AXIS_TYPES, check, is_split, make_mesh, place

pytestmark = pytest.mark.platforms("cpu")

ATTENTION = Attention(queries=8, heads=4, channels=6)
CONVOLUTION = Convolution(image=(8, 8), groups=4, channels=6)


class Split(NamedTuple):
    """Shardings of operands over a mesh of 4 x 2 devices and of the result, and the gradients that are all-reduced."""

    name: str
    case: Any
    operands: Operands
    result: P
    summed: tuple[str, ...]

    def __str__(self):
        return self.name

    def arrays(self):
        return Operands(*map(np.float32, self.case.operands(lead=(4,))))


def everywhere(spec):
    return Operands(spec, spec, spec)


QUERIES, ROWS, COLUMNS = P(None, "a"), P(None, "a"), P(None, None, "b")
SPLITS = [
    Split("attention_batch", ATTENTION, everywhere(P("a")), P("a"), ()),
    Split("attention_queries", ATTENTION, Operands(P(), QUERIES, QUERIES), QUERIES, ("value",)),
    Split(
        "attention_batch_and_heads",
        ATTENTION,
        Operands(P("a", None, "b"), P("a", None, "b"), P("a", None, "b")),
        P("a", None, "b"),
        (),
    ),
    Split("dcnv3_batch", CONVOLUTION, everywhere(P("a")), P("a"), ()),
    Split("dcnv3_rows", CONVOLUTION, Operands(P(), ROWS, ROWS), ROWS, ("value",)),
    Split("dcnv3_columns", CONVOLUTION, Operands(P(), COLUMNS, COLUMNS), COLUMNS, ("value",)),
    Split(
        "dcnv3_rows_and_groups",
        CONVOLUTION,
        Operands(P(None, None, None, "b"), P(None, "a", None, "b"), P(None, "a", None, "b")),
        P(None, "a", None, "b"),
        ("value",),
    ),
]


def gradients(function, operands):
    return jax.grad(lambda operands: jnp.sin(function(*operands)).sum())(operands)


@pytest.mark.parametrize("axis_type", AXIS_TYPES)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_values_and_gradients(split, axis_type):
    """Guards against unnoticed all-gathers, windows that forget where a shard begins, and wrong all-reduces."""
    mesh, arrays, function = make_mesh(axis_type), split.arrays(), split.case.function
    placed = place(mesh, arrays, split.operands)
    exchanged, result = check(mesh, lambda operands: function(*operands), placed, arrays)
    assert exchanged == []
    assert is_split(result, mesh, split.result)
    exchanged, grads = check(mesh, functools.partial(gradients, function), placed, arrays, 1e-3)
    assert {c.kind for c in exchanged} <= {"all-reduce"}
    assert len(exchanged) == len(split.summed)
    for name in Operands._fields:
        assert is_split(getattr(grads, name), mesh, getattr(split.operands, name))


@pytest.mark.parametrize("split", [SPLITS[1], SPLITS[4]], ids=str)
def test_tangents(split):
    """Guards against a forward derivative that gathers although the value does not."""
    mesh, arrays, function = make_mesh(), split.arrays(), split.case.function

    def push(operands):
        return jax.jvp(function, tuple(operands), tuple(map(jnp.cos, operands)))

    exchanged, _ = check(mesh, push, place(mesh, arrays, split.operands), arrays, 1e-3)
    assert exchanged == []


def test_uneven_queries():
    """Guards against: a gradient of value that takes in what XLA fills up unequal parts of the queries with."""
    case = Attention(queries=6)
    mesh, arrays = make_mesh(), Operands(*map(np.float32, case.operands(lead=(4,))))

    def loss(operands):
        result = jax.lax.with_sharding_constraint(case.function(*operands), NamedSharding(mesh, P(None, "a")))
        return jnp.sin(result).sum()

    whole = functools.partial(gradients, case.function)
    check(mesh, jax.grad(loss), place(mesh, arrays, [P()] * 3), arrays, 1e-3, whole=whole)


@pytest.mark.parametrize("case", [ATTENTION, CONVOLUTION], ids=["attention", "dcnv3"])
@pytest.mark.parametrize("axis_type", AXIS_TYPES)
def test_shard_map(case, axis_type):
    """Each device has its own examples; within a device nothing is partitioned any more."""
    mesh = make_mesh(axis_type)
    arrays = Operands(*map(np.float32, case.operands(lead=(4,))))
    specs = everywhere(P("a"))

    def loss(operands):
        return jax.lax.psum(jnp.sin(case.function(*operands)).sum(), "a")

    split = jax.shard_map(loss, mesh=mesh, in_specs=(specs,), out_specs=P())
    with jax.set_mesh(mesh):
        actual = jax.jit(jax.grad(split))(place(mesh, arrays, specs))
    expected = jax.jit(functools.partial(gradients, case.with_backend("reference")))(arrays)
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-3, atol=1e-3)


def test_gradients_of_16_bits_are_summed_over_devices_before_they_are_rounded():
    """Only the order of a sum in float32 differs from that on one device, which few rounded results show."""
    split = SPLITS[1]
    mesh, arrays = make_mesh(), split.arrays()
    arrays = arrays._replace(value=jnp.asarray(arrays.value, jnp.bfloat16))

    def gradient(operands):
        def loss(value):
            return jnp.sin(split.case.function(value, *operands[1:]).astype(jnp.float32)).sum()

        return jax.grad(loss)(operands.value)

    exchanged, actual = check(mesh, gradient, place(mesh, arrays, split.operands), arrays, 2e-2)
    assert [(c.kind, c.dtype) for c in exchanged] == [("all-reduce", "f32")]
    assert np.mean(np.asarray(actual) != np.asarray(jax.jit(gradient)(arrays))) < 0.01
