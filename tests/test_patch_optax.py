"""`jax_dcn.patch("optax")`: `optax.assignment.hungarian_algorithm` before and after."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from optax.assignment import hungarian_algorithm

import jax_dcn


def costs(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), "float32")


def of_batch(function):
    return jax.vmap(function, in_axes=1)


def outcome(compute):
    try:
        return compute()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("shape", [(4, 4), (3, 7), (7, 3), (1, 1), (2, 1)])
@pytest.mark.parametrize("transform", [lambda one: one, jax.jit, of_batch])
def test_same_assignment(shape, transform):
    """In the same order and of the same types; the random costs have one assignment of the least sum."""
    matrix = costs(shape[0], 5, shape[1]) if transform is of_batch else costs(*shape)
    expected = transform(hungarian_algorithm)(matrix)
    with jax_dcn.patch("optax") as patch:
        found = transform(hungarian_algorithm)(matrix)
        assert patch.left == ()
        assert "linear_sum_assignment" in str(jax.make_jaxpr(transform(hungarian_algorithm))(matrix))
    for ours, theirs in zip(found, expected, strict=True):
        assert_array_equal(ours, theirs, strict=True)


def test_costs_that_are_not_finite():
    """All rows have a column, with as few of these pairs as possible."""
    matrix = costs(4, 6).at[1].set(jnp.inf).at[0, :5].set(jnp.nan).at[2, 3].set(-jnp.inf)
    with jax_dcn.patch("optax"):
        rows, columns = map(np.asarray, hungarian_algorithm(matrix))
    assert sorted(rows) == [0, 1, 2, 3]
    assert len({*columns}) == 4
    of_row = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    assert (of_row[0], of_row[2]) == (5, 3)
    assert of_row[3] == min(set(range(6)) - {5, 3}, key=lambda column: matrix[3, column])


@pytest.mark.parametrize("matrix", [costs(0, 3), costs(3), jnp.ones((2, 2), int), np.ones((2, 2), bool)])
def test_what_is_left_to_the_original(matrix):
    expected = outcome(lambda: hungarian_algorithm(matrix))
    with jax_dcn.patch("optax") as patch:
        found = outcome(lambda: hungarian_algorithm(matrix))
        assert patch.left == (
            f"optax.assignment.hungarian_algorithm: costs of {matrix.dtype} and shape {matrix.shape}",
        )
    assert type(found) is type(expected)
    assert str(found) == str(expected)
