"""`linear_sum_assignment`, against SciPy, against all assignments of small problems, and on special costs."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_array_equal
from scipy import optimize

import jax_dcn
from tests.helpers.sharding import make_mesh

BACKENDS = [None, "reference"]
backends = pytest.mark.parametrize("backend", BACKENDS)


def assigned(costs, **options):
    """The columns of the rows, which are one to one."""
    columns = np.asarray(jax_dcn.linear_sum_assignment(costs, **options))
    assert columns.dtype == np.int32 and columns.shape == costs.shape[:-1]
    for row in columns.reshape(math.prod(costs.shape[:-2]), costs.shape[-2]):
        taken = row[row >= 0]
        assert len(set(taken)) == len(taken) and (row >= -1).all() and (taken < costs.shape[-1]).all()
    return columns


def total(costs, columns):
    rows = np.flatnonzero(columns >= 0)
    return len(rows), costs[rows, columns[rows]].astype(float).sum()


def best_of_all(costs):
    """The most pairs that are permitted, and their least sum, by trying every assignment."""
    if len(costs) > costs.shape[1]:
        costs = costs.T
    found = []
    for columns in itertools.permutations(range(costs.shape[1]), len(costs)):
        chosen = costs[range(len(costs)), columns]
        found.append((-np.isfinite(chosen).sum(), chosen[np.isfinite(chosen)].astype(float).sum()))
    pairs, least = min(found)
    return -pairs, least


# More columns than a thread block of a GPU has threads, and more rows.
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (5, 3), (20, 20), (9, 300), (300, 9)], ids=str)
@backends
def test_scipy(size, backend):
    random = np.random.default_rng(sum(size))
    costs = random.normal(size=(3, *size)).astype(np.float32)
    for is_maximum in (False, True):
        columns = assigned(costs, maximize=is_maximum, backend=backend)
        for cost, row in zip(costs, columns, strict=True):
            rows, expected = optimize.linear_sum_assignment(cost, is_maximum)
            assert_array_equal(np.flatnonzero(row >= 0), rows)
            assert_array_equal(row[rows], expected)


@pytest.mark.parametrize("size", [(4, 4), (3, 6), (6, 3)], ids=str)
@backends
def test_ties_and_forbidden_pairs(size, backend):
    random = np.random.default_rng(sum(size))
    costs = random.integers(-3, 4, (90, *size)).astype(np.float32)
    forbidden = random.random(costs.shape) < np.linspace(0.4, 0.9, 90)[:, None, None]
    costs[forbidden] = random.choice([np.nan, np.inf, -np.inf], forbidden.sum())
    for cost, row in zip(costs, assigned(costs, backend=backend), strict=True):
        assert total(cost, row) == best_of_all(cost)


FORBIDDEN = [[True, False, False, False], [True, True, False, False], [True, False, False, False]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@backends
def test_any_magnitude(backend, dtype, x64):
    """Rows compete for a column, which brings the cost of forbidden pairs into the prices of the others."""
    costs = np.array([[1.0, 0, 0, 0], [3, 2, 0, 0], [1, 0, 0, 0]], dtype)
    for scale in (1e-30, 1e-9, 1.0, 1e17, float(np.finfo(dtype).max) / 4):
        scaled = np.where(FORBIDDEN, costs * np.array(scale, dtype), np.inf)
        found = assigned(scaled, backend=backend)
        assert found[1] == 1 and sorted(found[[0, 2]]) == [-1, 0], scale
        equal = np.where([[True, True], [True, False]], scaled.max(initial=0, where=FORBIDDEN), np.inf)
        assert_array_equal(assigned(equal, backend=backend), [1, 0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@backends
def test_the_largest_numbers(backend, dtype, x64):
    most = np.finfo(dtype).max
    less = most * np.array(0.99, dtype)
    costs = np.array([[most, -most, np.inf], [less, -most, 0], [np.inf, -less, np.inf]], dtype)
    assert_array_equal(assigned(costs, backend=backend), [0, 2, 1])
    random = np.random.default_rng(0)
    costs = (random.uniform(0.99, 1, (20, 5, 5)) * most * random.choice([-1, 1], (20, 1, 1))).astype(dtype)
    costs[random.random(costs.shape) < 0.7] = np.inf
    for cost, row in zip(costs, assigned(costs, backend=backend), strict=True):
        count, _ = best_of_all(cost / most)
        assert (row >= 0).sum() == count


@backends
def test_padding(backend):
    """Padded rows and columns have no partner, and the others the one that they have without padding."""
    costs = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
    padded = np.full((2, 9, 12), np.inf, np.float32)
    padded[:, :6, 2:6] = costs
    columns = assigned(padded, backend=backend)
    assert_array_equal(columns[:, 6:], -1)
    expected = assigned(costs, backend=backend)
    assert_array_equal(columns[:, :6], np.where(expected < 0, -1, expected + 2))


@backends
def test_batches(backend):
    costs = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    expected = assigned(costs, backend=backend)
    assert_array_equal(expected[1, 2], assigned(costs[1, 2], backend=backend))
    batched = jax.vmap(lambda costs: jax_dcn.linear_sum_assignment(costs, backend=backend), 2, 1)
    assert_array_equal(jax.jit(batched)(np.moveaxis(costs, 1, 2)), expected)
    for shape in ((0, 4, 5), (2, 0, 5), (2, 4, 0)):
        assert_array_equal(assigned(np.zeros(shape, np.float32), backend=backend), np.full(shape[:-1], -1))


@pytest.mark.platforms("cpu")
def test_a_sharded_batch_stays_sharded():
    costs = np.random.default_rng(0).normal(size=(3, 8, 4, 5)).astype(np.float32)
    mesh = make_mesh()
    placed = jax.device_put(costs, NamedSharding(mesh, P(None, "a")))
    compiled = jax.jit(jax_dcn.linear_sum_assignment).lower(placed).compile()
    found = compiled(placed)
    assert found.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "a")), found.ndim)
    assert "all-gather" not in compiled.as_text()
    assert_array_equal(found, assigned(costs))


@pytest.mark.platforms("cpu")
@backends
def test_shard_map(backend):
    costs = np.random.default_rng(0).normal(size=(8, 4, 5)).astype(np.float32)
    solve = functools.partial(jax_dcn.linear_sum_assignment, backend=backend)
    split = jax.shard_map(solve, mesh=make_mesh(), in_specs=P("a"), out_specs=P("a"))
    assert_array_equal(jax.jit(split)(costs), assigned(costs))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "uint8"])
def test_types(dtype):
    costs = jnp.asarray(np.random.default_rng(0).integers(0, 100, (6, 7)), dtype)
    assert_array_equal(assigned(costs), assigned(costs.astype(jnp.float32)))


@backends
def test_float64(backend, x64):
    """Differences that float32 does not have decide."""
    close = 1 + 1e-12 * np.random.default_rng(0).normal(size=(5, 6))
    assert_array_equal(assigned(close, backend=backend), optimize.linear_sum_assignment(close)[1])


def test_maximum():
    costs = np.array([[1, 5, np.inf], [2, 7, -np.inf], [np.nan, 0, -np.inf]], np.float32)
    assert_array_equal(assigned(costs, maximize=True), [0, 1, -1])
    assert_array_equal(assigned(np.array([[0, 255], [255, 254]], np.uint8), maximize=True), [1, 0])
    limits = np.iinfo(np.int32)
    assert_array_equal(assigned(np.array([[limits.min, limits.max]], np.int32), maximize=True), [1])


def test_no_gradient_flows():
    costs = jnp.array([[1.0, 2.0], [4.0, 3.0]])

    def chosen(costs):
        return jnp.take_along_axis(costs, jax_dcn.linear_sum_assignment(costs)[:, None], 1).sum()

    assert_array_equal(jax.jit(jax.grad(chosen))(costs), np.eye(2))
    assert_array_equal(jax.hessian(chosen)(costs), np.zeros((2, 2, 2, 2)))


def test_the_plan():
    plan = jax_dcn.kernel_plan(jax_dcn.linear_sum_assignment, jnp.zeros((5, 30, 8)), platform="cuda")
    assert plan["forward"].path == "kernel" and plan["forward"].workspace_bytes == 5 * (8 * (3 * 30 + 8) + 4 * 8)
    assert plan["cost"].reason == "it is zero"
