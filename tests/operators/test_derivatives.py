"""Derivatives of all orders and modes, and no more of them than are requested."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from tests.helpers.deform_conv.cases import assert_close, cast
from tests.helpers.operators import (
    EACH_PRIMITIVE,
    custom_calls,
    custom_calls_on,
    each_operator,
    loss,
    of_some,
    pull_back,
)

from .test_transformations import subsets


@each_operator(*EACH_PRIMITIVE)
def test_tangents(operator, x64):
    """Tangents of each operand and of all, against the gradients of the numpy reference."""
    case = operator.case
    operands, cotangent, tangents = case.operands(), case.cotangent(), case.operands(seed=1)
    _, gradients = case.expected(cotangent, operands)
    for names in subsets(operator):
        primals, pushed = (tuple(getattr(tree, name) for name in names) for tree in (operands, tangents))
        push = jax.jit(functools.partial(jax.jvp, of_some(case.with_backend(), operands, names)))
        expected = sum(np.vdot(getattr(gradients, name), getattr(tangents, name)) for name in names)
        assert_close(np.vdot(push(primals, pushed)[1], cotangent), expected)


@each_operator("deform_conv2d", "deform_psroi_pool", "multi_scale_deformable_attention")
def test_finite_differences_of_the_gradient(operator, x64):
    """In both modes, away from non-differentiable points. The gradient itself is compared with the numpy reference."""
    names = operator.differentiable
    function = of_some(operator.small.with_backend(), operator.smooth, names)
    operands = [getattr(operator.smooth, name) for name in names]

    def of_function(*operands):
        return jnp.sin(function(*operands)).sum()

    gradient = jax.jit(jax.grad(of_function, tuple(range(len(operands)))))
    check_grads(gradient, operands, 1, ["fwd", "rev"], rtol=1e-5, atol=1e-5, eps=1e-6)


@pytest.mark.slow
@each_operator("deform_conv2d", "multi_scale_deformable_attention")
def test_third_order_against_the_reference(operator, x64):
    def run(backend):
        function = operator.small.with_backend(backend)

        def along(t):
            return loss(function, jax.tree.map(lambda a: a + t * jnp.cos(a), operator.smooth))

        return jax.jit(jax.grad(jax.jacfwd(jax.grad(along))))(1e-3)

    assert_close(run(None), run("reference"), 1e-8, 1e-8)


@pytest.mark.usefixtures("im2col_on_cpu")
@each_operator(*EACH_PRIMITIVE)
def test_only_what_is_requested_is_computed(operator, platform):
    """The program has the kernels of the requested gradients and no others, and the same numbers."""
    operands, cotangent = cast((operator.case.operands(), operator.case.cotangent()), np.float32)
    _, gradients = pull_back(operator.case.with_backend(), cotangent, operands)
    calls = custom_calls_on(platform, [*operator.kernels.values(), operator.forward])
    for name in operator.names:
        of_one = of_some(operator.case.with_backend(), operands, [name])
        # The loss is linear in the result, so that the program does not need the result.
        gradient = jax.grad(lambda array, of_one=of_one: (of_one(array) * cotangent).sum())
        compiled = jax.jit(gradient).lower(getattr(operands, name)).compile()
        expected = custom_calls_on(platform, [operator.kernels[name]] if name in operator.kernels else [])
        assert custom_calls(compiled) & calls == expected
        assert_close(compiled(getattr(operands, name)), getattr(gradients, name), 1e-5, 1e-5)
    assert "dcn_" not in pull_back.lower(operator.case.with_backend("reference"), cotangent, operands).as_text()
