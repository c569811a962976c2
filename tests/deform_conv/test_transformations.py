"""Every JAX transformation of the operator, against the same thing without it."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.deform_conv.cases import (
    BACKENDS,
    CASE,
    Case,
    Operands,
    assert_close,
    convolve,
    pull_back,
)
from tests.helpers.deform_conv.layer import (
    LAYER,
    OPERANDS,
    TANGENTS,
    apply,
    assert_near,
    loss,
    reference,
)
from tests.helpers.deform_conv.numpy_reference import Convolution


@functools.cache
def expected():
    """(value, gradients) of the loss, by the reference."""
    return jax.jit(jax.value_and_grad(functools.partial(loss, function=reference)))(OPERANDS)


def test_jit_and_eager():
    assert_near(jax.value_and_grad(loss)(OPERANDS), expected())
    assert_near(jax.jit(jax.value_and_grad(loss))(OPERANDS), expected())


def test_disable_jit():
    with jax.disable_jit():
        value = loss(OPERANDS)
    assert_near(value, expected()[0])


def test_debug_nans():
    with jax.debug_nans(True):
        assert_near(jax.value_and_grad(loss)(OPERANDS), expected())
        with pytest.raises(FloatingPointError):
            apply(OPERANDS._replace(offset=np.full_like(OPERANDS.offset, np.nan)))


def test_eval_shape():
    shapes = jax.eval_shape(jax.value_and_grad(loss), OPERANDS)
    assert jax.tree.map(lambda s: (s.shape, s.dtype), shapes[1]) == jax.tree.map(lambda a: (a.shape, a.dtype), OPERANDS)
    struct = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), OPERANDS)
    assert jax.eval_shape(apply, struct).shape == (2, 3, 4, 2)


@pytest.mark.parametrize(
    "names", [("x",), ("offset",), ("weight",), ("bias",), ("mask",), Operands._fields], ids="+".join
)
def test_jvp(names):
    """Tangents of some operands; the others' are symbolic zeros."""
    primals, tangents = (tuple(getattr(tree, name) for name in names) for tree in (OPERANDS, TANGENTS))

    def push(function):
        def vary(*some):
            return function(OPERANDS._replace(**dict(zip(names, some, strict=True))))

        return jax.jit(lambda *a: jax.jvp(vary, *a))(primals, tangents)

    assert_near(push(apply), push(reference))


TINY = Case("tiny", (2, 2), 1, 2, (1, 2), 1, (), Convolution(padding="SAME"))


def tiny(backend):
    return functools.partial(convolve, backend=backend, **TINY.keywords)


@pytest.mark.parametrize("jacobian", [jax.jacfwd, jax.jacrev], ids=["jacfwd", "jacrev"])
def test_jacobians(jacobian, x64):
    operands = TINY.smooth_operands()
    by_kernels, by_reference = (jax.jit(jacobian(tiny(backend)))(operands) for backend in BACKENDS)
    assert_close(by_kernels, by_reference)


def test_hessian(x64):
    """Of the kernels' function against two derivatives of the reference that take the other two modes."""
    operands = TINY.smooth_operands()._replace(bias=None)
    by_kernels, by_reference = (functools.partial(loss, function=tiny(backend)) for backend in BACKENDS)
    forward_over_reverse = jax.jit(jax.hessian(by_kernels))(operands)
    assert_close(forward_over_reverse, jax.jit(jax.jacrev(jax.jacfwd(by_reference)))(operands))


def test_gradient_of_a_gradient():
    """A gradient penalty, as training does it: reverse over reverse."""

    def penalty(operands, function=apply):
        return sum(jnp.sum(g**2) for g in jax.tree.leaves(jax.grad(loss)(operands, function)))

    grad = jax.jit(jax.grad(penalty))(OPERANDS)
    wanted = jax.jit(jax.grad(functools.partial(penalty, function=reference)))(OPERANDS)
    assert_close(grad, wanted, 1e-3, 1e-3)


def test_linearize_and_linear_transpose():
    y, push = jax.linearize(apply, OPERANDS)
    _, tangent = jax.jvp(apply, (OPERANDS,), (TANGENTS,))
    assert_near(push(TANGENTS), tangent)
    (pulled,) = jax.linear_transpose(push, OPERANDS)(jnp.cos(y))
    assert_near(pulled, expected()[1])


@pytest.mark.parametrize("name", ["x", "weight", "mask"])
def test_linear_transpose_in_one_operand(name):
    cotangent = LAYER.cotangent().astype(np.float32)
    _, gradients = pull_back(cotangent, OPERANDS, **LAYER.keywords)
    operand = getattr(OPERANDS, name)
    _, push = jax.linearize(lambda moved: apply(OPERANDS._replace(**{name: moved})), operand)
    (pulled,) = jax.linear_transpose(push, operand)(cotangent)
    assert_near(pulled, getattr(gradients, name))


@pytest.mark.parametrize(
    "policy", [None, jax.checkpoint_policies.nothing_saveable, jax.checkpoint_policies.dots_saveable]
)
def test_remat(policy):
    assert_near(jax.jit(jax.value_and_grad(jax.checkpoint(loss, policy=policy)))(OPERANDS), expected())


def iterated(step, function):
    """A recurrent layer: three steps of it, by scan; the bias stays, so its tangent as a carry starts at zero."""

    def run(operands):
        def body(carry, _):
            x, total = carry
            x = jnp.tanh(step(function)(operands._replace(x=x)))
            return (x, total + x.sum()), x.sum()

        (x, total), each = jax.lax.scan(body, (operands.x, 0.0), None, length=3)
        return (x**2).sum() + total + (each**2).sum()

    return run


@pytest.mark.parametrize("step", [lambda f: f, jax.checkpoint], ids=["scan", "remat_in_scan"])
def test_scan(step):
    kernels, jnp_only = (jax.jit(jax.value_and_grad(iterated(step, f)))(OPERANDS) for f in (apply, reference))
    assert_close(kernels, jnp_only, 1e-3, 1e-3)


def test_scan_over_layers():
    weights = np.stack([OPERANDS.weight, -OPERANDS.weight])

    def run(weights, function):
        def body(x, weight):
            return jnp.tanh(function(OPERANDS._replace(x=x, weight=weight))), None

        return jax.lax.scan(body, OPERANDS.x, weights)[0].sum()

    grad = jax.jit(jax.grad(run), static_argnums=1)
    assert_close(grad(weights, apply), grad(weights, reference), 1e-3, 1e-3)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cond(sign):
    def branching(operands):
        return jax.lax.cond(sign > operands.bias[0] * 0, loss, lambda o: 2 * loss(o), operands)

    scale = 1 if sign > 0 else 2
    assert_near(jax.jit(jax.value_and_grad(branching))(OPERANDS), jax.tree.map(lambda a: scale * a, expected()))


def test_while_loop():
    def run(function):
        def body(state):
            count, x = state
            return count + 1, jnp.tanh(function(OPERANDS._replace(x=x)))

        return jax.jit(lambda x: jax.lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1])(OPERANDS.x)

    assert_near(run(apply), run(reference))


def test_custom_vjp_around_it():
    @jax.custom_vjp
    def halved(operands):
        return loss(operands)

    def forward(operands):
        value, pullback = jax.vjp(loss, operands)
        return value, pullback

    def backward(pullback, cotangent):
        return pullback(cotangent / 2)

    halved.defvjp(forward, backward)
    value, gradients = expected()
    assert_near(jax.jit(jax.value_and_grad(halved))(OPERANDS), (value, jax.tree.map(lambda g: g / 2, gradients)))


SUBSETS = [subset for size in range(1, 6) for subset in itertools.combinations(range(5), size)]
MAPPED_AXES = Operands(x=1, offset=0, weight=2, bias=1, mask=3)
SIZE = 3


@functools.cache
def one_by_one():
    return jax.jit(jax.value_and_grad(loss))


@pytest.mark.parametrize("subset", SUBSETS, ids=lambda subset: "+".join(Operands._fields[k] for k in subset))
def test_vmap(subset):
    """vmap, vmap of grad and grad of vmap, over some operands at odd axes, against a Python loop."""
    axes = Operands(*(MAPPED_AXES[k] if k in subset else None for k in range(5)))
    scales = (1.0, -0.5, 0.7)
    examples = [
        Operands(*(a * scale if k in subset else a for k, a in enumerate(OPERANDS))) for scale in np.float32(scales)
    ]
    stacked = Operands(
        *(
            a if axis is None else np.stack([e[k] for e in examples], axis)
            for k, (a, axis) in enumerate(zip(OPERANDS, axes, strict=True))
        )
    )

    @jax.jit
    def mapped(stacked):
        in_axes = (axes,)
        outside = jax.grad(lambda stacked: jax.vmap(loss, in_axes)(stacked).sum())
        return jax.vmap(jax.value_and_grad(loss), in_axes)(stacked), outside(stacked)

    (values, inside), outside = mapped(stacked)
    looped_values, looped = zip(*map(one_by_one(), examples), strict=True)
    assert_near(values, np.stack(looped_values))
    assert_near(inside, jax.tree.map(lambda *g: np.stack(g), *looped))
    for k, axis in enumerate(axes):
        gradients = [g[k] for g in looped]
        assert_near(outside[k], sum(gradients) if axis is None else np.stack(gradients, axis))


def test_vmap_of_vmap_and_of_jvp():
    """Two mapped axes become two more batch dimensions; the tangents are mapped where the primals are not."""
    offsets = np.stack([np.stack([OPERANDS.offset * a * b for a in (1, 0.5)]) for b in (1, -1, 2)])
    double = jax.vmap(jax.vmap(lambda offset: apply(OPERANDS._replace(offset=offset))))(offsets)
    looped = [[apply(OPERANDS._replace(offset=offset)) for offset in row] for row in offsets]
    assert_near(double, np.array(looped))
    push = jax.jit(lambda tangent: jax.jvp(apply, (OPERANDS,), (tangent,))[1])
    tangents = jax.tree.map(lambda t: np.stack([t, 2 * t]), TANGENTS)
    once = push(TANGENTS)
    assert_near(jax.vmap(push)(tangents), np.stack([once, 2 * once]))


def test_vmap_of_nothing_mapped_inside():
    """A mapped value that the operator does not use does not change it."""
    y = jax.vmap(lambda scale: scale * apply(OPERANDS))(np.array([1.0, 2.0], np.float32))
    assert_near(y[1], 2 * apply(OPERANDS))


def test_vmap_with_batches_of_none(x64):
    case = CASE["unbatched"]
    operands = case.operands()
    batched = jax.tree.map(lambda a: np.stack([a, 2 * a]), operands)
    y = jax.vmap(functools.partial(convolve, **case.keywords))(batched)
    for k in range(2):
        one = jax.tree.map(lambda a, k=k: a[k], batched)
        assert_close(y[k], convolve(one, **case.keywords))


def test_linear_transpose():
    """Of the operator in x, and of its gradient in the cotangent."""
    linear = OPERANDS._replace(bias=None)
    y = apply(linear)
    pulled, pull = jax.vjp(lambda x: apply(linear._replace(x=x)), linear.x)
    assert_near(jax.linear_transpose(lambda x: apply(linear._replace(x=x)), linear.x)(y), pull(y))
    assert_near(jax.linear_transpose(lambda ct: pull(ct)[0], pulled)(linear.x)[0], y)
    with pytest.raises(NotImplementedError, match="not known to be linear"):
        jax.linear_transpose(lambda offset: apply(linear._replace(offset=offset)), linear.offset)(y)


def test_jitted_calls_are_cached():
    traced = []

    @jax.jit
    def counted(operands):
        traced.append(None)
        return apply(operands)

    counted(OPERANDS)
    counted(TANGENTS)
    assert len(traced) == 1
