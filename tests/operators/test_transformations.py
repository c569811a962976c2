"""Every JAX transformation of an operator, against the same thing without it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals

import jax_dcn
from tests.helpers.deform_conv.cases import assert_close, cast
from tests.helpers.operators import CONVOLUTION, EACH_PRIMITIVE, each_operator, loss, of_some, pull_back

assert_near = functools.partial(assert_close, rtol=1e-4, atol=1e-4)
one_operator = each_operator("deform_conv2d")  # for rules that do not depend on the operator


def loss_of(operator, backend=None):
    return functools.partial(loss, operator.case.with_backend(backend))


def operands_of(operator, seed=0):
    return cast(operator.case.operands(seed), np.float32)


@functools.cache
def expected(operator):
    """(value, gradients) of the loss, by the reference."""
    return jax.jit(jax.value_and_grad(loss_of(operator, "reference")))(operands_of(operator))


@each_operator("deform_conv2d", "multi_scale_deformable_attention")
def test_jit_and_eager(operator):
    value_and_grad = jax.value_and_grad(loss_of(operator))
    operands = operands_of(operator)
    assert_near(value_and_grad(operands), expected(operator))
    assert_near(jax.jit(value_and_grad)(operands), expected(operator))
    with jax.disable_jit():
        assert_near(loss_of(operator)(operands), expected(operator)[0])
    shapes = jax.eval_shape(value_and_grad, operands)
    assert jax.tree.map(lambda s: (s.shape, s.dtype), shapes[1]) == jax.tree.map(lambda a: (a.shape, a.dtype), operands)


def test_debug_nans():
    operands = operands_of(CONVOLUTION)
    with jax.debug_nans(True):
        assert_near(jax.value_and_grad(loss_of(CONVOLUTION))(operands), expected(CONVOLUTION))
        with pytest.raises(FloatingPointError):
            loss_of(CONVOLUTION)(operands._replace(offset=np.full_like(operands.offset, np.nan)))


@each_operator("deform_conv2d", "multi_scale_deformable_attention")
def test_linearize_and_transpose(operator):
    function, operands = jax.jit(functools.partial(apply, operator)), operands_of(operator)
    result, push = jax.linearize(function, operands)
    tangents = operands_of(operator, 1)
    assert_near(push(tangents), jax.jvp(function, (operands,), (tangents,))[1])
    assert_near(jax.linear_transpose(push, operands)(jnp.cos(result))[0], expected(operator)[1])


def apply(operator, operands):
    return operator.case.with_backend()(*operands)


@each_operator(*EACH_PRIMITIVE)
def test_linear_transpose(operator):
    """With respect to one operand after the other, and of the gradient with respect to its cotangent."""
    operands = operands_of(operator)
    if "bias" in operator.names:  # which makes it affine
        operands = operands._replace(bias=None)
    cotangent = np.float32(operator.case.cotangent())
    _, gradients = pull_back(operator.case.with_backend(), cotangent, operands)
    for name, operand in operands._asdict().items():
        of_one = of_some(operator.case.with_backend(), operands, [name])
        if name in operator.linear:
            assert_near(jax.linear_transpose(of_one, operand)(cotangent)[0], getattr(gradients, name))
            pull = jax.vjp(of_one, operand)[1]
            assert_near(jax.linear_transpose(lambda ct: pull(ct)[0], cotangent)(operand)[0], of_one(operand))  # noqa: B023
        elif operand is not None and name in operator.kernels:
            with pytest.raises(NotImplementedError, match="not known to be linear"):
                jax.linear_transpose(of_one, operand)(cotangent)


remat = functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)


@pytest.mark.parametrize("wrap", [lambda step: step, remat], ids=["scan", "remat_in_scan"])
@one_operator
def test_scan(operator, wrap):
    """Layers that differ in all operands except the first, which each layer changes by its result."""
    first, *others = operator.names
    layers = [operands_of(operator, seed) for seed in range(3)]
    stacked = {name: np.stack([getattr(operands, name) for operands in layers]) for name in others}

    def run(backend, x, stacked):
        @wrap
        def step(x, arrays):
            result = operator.case.with_backend(backend)(*layers[0]._replace(**{first: x}, **arrays))
            return x * (1 + jnp.tanh(result).mean()), jnp.sin(result).sum()

        x, losses = jax.lax.scan(step, x, stacked)
        return (x**2).sum() + losses.sum()

    kernels, by_reference = (
        jax.jit(jax.value_and_grad(functools.partial(run, backend), (0, 1)))(getattr(layers[0], first), stacked)
        for backend in (None, "reference")
    )
    assert_close(kernels, by_reference, 1e-3, 1e-3)


@each_operator(*EACH_PRIMITIVE)
def test_operators_saveable(operator, capsys):
    """Saves the result, and so the forward kernels do not run again."""
    policies, function, operands = jax.checkpoint_policies, loss_of(operator), operands_of(operator)
    both = policies.save_from_both_policies(policies.dots_saveable, jax_dcn.operators_saveable)
    only_dots, saved = (jax.checkpoint(function, policy=policy) for policy in (policies.dots_saveable, both))

    def residuals(function):
        print_saved_residuals(function, operands)
        return capsys.readouterr().out

    def kernels(function):
        """The number of kernels in the backward pass, before XLA merges those that are equal."""
        _, pullback = jax.vjp(function, operands)
        return jax.jit(pullback).lower(1.0).as_text("hlo").count('custom_call_target="dcn_')

    assert "output of deform_" not in residuals(only_dots)
    assert residuals(saved).count("output of deform_") == 1
    assert kernels(function) == kernels(saved) < kernels(only_dots)


def subsets(operator):
    """Each operand, all operands, and those that have batch dimensions."""
    names = operator.names
    batched = tuple(name for name in names if name not in operator.shared)
    return [*((name,) for name in names), tuple(names), *([batched] if operator.shared else [])]


@each_operator(*EACH_PRIMITIVE)
def test_vmap(operator):
    """vmap, vmap of grad and grad of vmap, over some operands at odd axes, against a Python loop."""
    one_by_one = jax.jit(jax.value_and_grad(loss_of(operator)))
    examples = [operands_of(operator, seed) for seed in range(3)]
    for subset in subsets(operator):
        check_vmap(operator, subset, examples, one_by_one)


def check_vmap(operator, subset, examples, one_by_one):
    single = examples[0]
    axes = type(single)(
        *(
            (k + 1) % (array.ndim + 1) if name in subset else None
            for k, (name, array) in enumerate(zip(single._fields, single, strict=True))
        )
    )
    rows = [single._replace(**{name: getattr(example, name) for name in subset}) for example in examples]
    stacked = jax.tree.map(
        lambda axis, *arrays: arrays[0] if axis is None else np.stack(arrays, axis),
        axes,
        *rows,
        is_leaf=lambda axis: axis is None,
    )
    of_operator = loss_of(operator)

    @jax.jit
    def mapped(stacked):
        outside = jax.grad(lambda stacked: jax.vmap(of_operator, (axes,))(stacked).sum())
        return jax.vmap(jax.value_and_grad(of_operator), (axes,))(stacked), outside(stacked)

    (values, inside), outside = mapped(stacked)
    looped_values, looped = zip(*map(one_by_one, rows), strict=True)
    assert_near(values, np.stack(looped_values))
    assert_near(inside, jax.tree.map(lambda *g: np.stack(g), *looped))
    for name in operator.names:
        axis, gradients = getattr(axes, name), [getattr(g, name) for g in looped]
        together = sum(gradients) if axis is None else np.stack(gradients, axis)
        assert_near(getattr(outside, name), together)


@one_operator
def test_vmap_of_vmap_and_of_jvp(operator):
    """Mapped dimensions become batch dimensions; the tangents are mapped where the primals are not."""
    operands = operands_of(operator)
    name = [name for name in operator.names if name not in operator.shared][-1]
    array = getattr(operands, name)
    arrays = np.stack([np.stack([array * a * b for a in (1, 0.5)]) for b in (1, -1, 2)])
    of_one = jax.jit(of_some(operator.case.with_backend(), operands, [name]))
    double = jax.jit(jax.vmap(jax.vmap(of_one)))(arrays)
    assert_near(double, np.array([[of_one(array) for array in row] for row in arrays]))
    push = jax.jit(lambda tangent: jax.jvp(functools.partial(apply, operator), (operands,), (tangent,))[1])
    tangents = operands_of(operator, 1)
    once = push(tangents)
    twice = jax.tree.map(lambda t: np.stack([t, 2 * t]), tangents)
    assert_near(jax.vmap(push)(twice), np.stack([once, 2 * once]))
    scaled = jax.vmap(lambda scale: scale * of_one(array))(np.float32([1, 2]))  # nothing mapped inside
    assert_near(scaled[1], 2 * of_one(array))


@each_operator(*EACH_PRIMITIVE)
def test_batch_dimensions_of_the_operands(operator, x64):
    """Two dimensions in front of all operands that may have them are examples of their own."""
    operands, cotangent = operator.case.operands(lead=(2, 3)), operator.case.cotangent(lead=(2, 3))
    result, gradients = pull_back(operator.case.with_backend(), cotangent, operands)
    own = [name for name in operator.names if name not in operator.shared]
    sums = dict.fromkeys(operator.shared, 0)
    for index in np.ndindex(2, 3):
        example = operands._replace(**{name: getattr(operands, name)[index] for name in own})
        expected_result, expected_gradients = operator.case.expected(cotangent[index], example)
        assert_close(result[index], expected_result)
        for name in own:
            assert_close(getattr(gradients, name)[index], getattr(expected_gradients, name))
        sums = {name: total + getattr(expected_gradients, name) for name, total in sums.items()}
    assert_close({name: getattr(gradients, name) for name in sums}, sums)
