"""Derivatives of all orders and modes, vmap, jit, scan, what is computed, and that it repeats."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from tests.helpers.deform_aggregation.cases import CASES, Attention, Convolution, Operands, pull_back
from tests.helpers.deform_conv.cases import assert_close

BOTH = pytest.mark.parametrize("name", ["attention", "dcnv3"])
SMALL = {
    "attention": Attention(((3, 4), (2, 2)), (1, 2), queries=2, heads=2, channels=2),
    "dcnv3": Convolution((2, 2), groups=2, channels=2, image=(3, 2)),
}
CALLS = {
    "value": "dcn_aggregation_value_cotangent",
    "locations": "dcn_aggregation_tap_cotangents",
    "weights": "dcn_aggregation_tap_cotangents",
}


@pytest.mark.parametrize(
    "active", [active for n in (1, 2, 3) for active in itertools.combinations(range(3), n)], ids=str
)
@BOTH
def test_jvp(name, active, x64):
    """Of each set of operands, against the gradients of the numpy reference."""
    case = CASES[name]
    operands, cotangent, tangents = case.operands(), case.cotangent(), case.operands(seed=1)
    _, gradients = case.expected(cotangent, operands)
    expected = sum((gradients[k] * tangents[k]).sum() for k in active)

    def of(*moving):
        arrays = dict(zip(active, moving, strict=True))
        return case.function(*(arrays.get(k, operand) for k, operand in enumerate(operands)))

    primals, pushed = [operands[k] for k in active], [tangents[k] for k in active]
    _, tangent = jax.jit(functools.partial(jax.jvp, of))(primals, pushed)
    assert_close((tangent * cotangent).sum(), expected)


@BOTH
def test_gradients_of_both_orders_and_modes(name, x64):
    case = SMALL[name]
    check_grads(jax.jit(case.function), case.operands(3), 2, ["fwd", "rev"], rtol=1e-5, eps=1e-6)


@BOTH
def test_third_order(name, x64):
    """Along a line, the derivative of every order of the kernels' program is that of the reference."""
    case = SMALL[name]
    operands, direction = case.operands(3), case.operands(4)

    def along(function):
        def of(t):
            return jnp.sin(function(*(a + t * d for a, d in zip(operands, direction, strict=True)))).sum()

        return jax.jit(jax.grad(jax.jacfwd(jax.grad(of))))(1e-3)

    assert_close(along(case.function), along(case.with_backend("reference")), 1e-8, 1e-8)


@pytest.mark.parametrize("axes", [a for a in itertools.product([0, None], repeat=3) if a != (None,) * 3], ids=str)
@BOTH
def test_vmap(name, axes, x64):
    case = CASES[name]
    batched, single = case.operands(lead=(3,)), case.operands()
    mixed = [b if axis == 0 else s for b, s, axis in zip(batched, single, axes, strict=True)]

    def gradients(*operands):
        return jax.value_and_grad(lambda *operands: jnp.sin(case.function(*operands)).sum(), (0, 1, 2))(*operands)

    one = jax.jit(gradients)
    rows = [one(*(m[i] if axis == 0 else m for m, axis in zip(mixed, axes, strict=True))) for i in range(3)]
    assert_close(jax.jit(jax.vmap(gradients, axes))(*mixed), jax.tree.map(lambda *r: jnp.stack(r), *rows))


@pytest.mark.parametrize("axes", [(2, 1, 3), (None, 1, None)])
@BOTH
def test_vmap_of_jit(name, axes, x64):
    """The batch need not stand in front, and is the same as batch dimensions in front of all arrays."""
    case = CASES[name]
    batched, single = case.operands(lead=(3,)), case.operands()
    in_front = [b if axis is not None else np.stack([s] * 3) for b, s, axis in zip(batched, single, axes, strict=True)]
    moved = [s if axis is None else np.moveaxis(b, 0, axis) for b, s, axis in zip(batched, single, axes, strict=True)]
    assert_close(jax.vmap(jax.jit(case.function), axes)(*moved), jax.jit(case.function)(*in_front))


@BOTH
def test_several_batch_dimensions(name, x64):
    case = CASES[name]
    operands, cotangent = case.operands(lead=(2, 3)), case.cotangent(lead=(2, 3))
    actual = pull_back(cotangent, operands, case.function)
    rows = [case.expected(cotangent[index], Operands(*(a[index] for a in operands))) for index in np.ndindex(2, 3)]
    expected = jax.tree.map(lambda *r: np.stack(r).reshape(2, 3, *r[0].shape), *rows)
    assert_close(actual, expected)


def test_a_scan_over_layers(x64):
    """Layers that attend to the same value, one after the other, as those of a decoder."""
    case = Attention(queries=5)
    value, locations, weights = case.operands()

    def loss(value, weights):
        def one(moved, weights):
            attended = case.function(value, moved, weights)
            return moved + 0.01 * attended.mean(), attended.sum()

        return jax.lax.scan(one, locations, weights)[1].sum()

    many = np.stack([weights] * 3)
    actual = jax.jit(jax.grad(loss))(value, many)

    def unrolled(value):
        moved, total = locations, 0.0
        for k in range(3):
            attended = case.function(value, moved, many[k])
            moved, total = moved + 0.01 * attended.mean(), total + attended.sum()
        return total

    assert_close(actual, jax.jit(jax.grad(unrolled))(value))


@pytest.mark.parametrize("operand", CALLS)
@BOTH
def test_only_what_is_asked(name, operand):
    case = CASES[name]
    operands = Operands(*map(np.float32, case.operands()))

    def loss(array):
        return jnp.sin(case.function(*operands._replace(**{operand: array}))).sum()

    text = jax.jit(jax.grad(loss)).lower(getattr(operands, operand)).compile().as_text()
    assert {call for call in CALLS.values() if f'"{call}"' in text} == {CALLS[operand]}


@BOTH
def test_results_repeat(name):
    case = CASES[name]
    operands, cotangent = Operands(*map(np.float32, case.operands())), np.float32(case.cotangent())
    first, second = (pull_back(cotangent, operands, case.function) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)
