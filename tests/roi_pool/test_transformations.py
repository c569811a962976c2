"""Derivatives of all orders and modes, vmap, what is computed, and that it repeats."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from tests.helpers.deform_conv.cases import assert_close
from tests.helpers.roi_pool import numpy_reference
from tests.helpers.roi_pool.cases import COTANGENT, POOLING, operands, pool
from tests.helpers.roi_pool.numpy_reference import Pooling


def test_jvp(x64):
    """Gradients of both operands, of only one, and through jit, against those of the numpy reference."""
    x, rois, offset = operands()
    _, d_x, d_offset = numpy_reference.pool(x, rois, offset, COTANGENT, POOLING)
    random = np.random.default_rng(1)
    t_x, t_offset = random.normal(size=x.shape), random.normal(size=offset.shape)
    in_x, in_offset = (d_x * t_x).sum(), (d_offset * t_offset).sum()

    def push(function, primals, tangents):
        _, tangent = jax.jit(functools.partial(jax.jvp, function))(primals, tangents)
        return (tangent * COTANGENT).sum()

    jitted = jax.jit(pool)
    assert_close(push(lambda x, offset: jitted(x, rois, offset), (x, offset), (t_x, t_offset)), in_x + in_offset)
    assert_close(push(lambda x: pool(x, rois, offset), (x,), (t_x,)), in_x)
    assert_close(push(lambda offset: pool(x, rois, offset), (offset,), (t_offset,)), in_offset)


def test_gradients_of_both_orders_and_modes(x64):
    random = np.random.default_rng(3)
    x, rois = random.normal(size=(1, 5, 6, 4)), np.array([[0, 1, 0, 4, 3], [0, -2, 1, 3, 9]])
    offset = random.uniform(-1, 1, size=(2, 2, 2, 2))
    pooling = Pooling((2, 2), (1, 2), (2, 2), (2, 2), spatial_scale=0.5, trans_std=0.2)
    function = jax.jit(lambda x, offset: pool(x, rois, offset, pooling=pooling))
    check_grads(function, (x, offset), 2, ["fwd", "rev"], rtol=1e-5, eps=1e-6)


def test_regions_have_no_gradient(x64):
    x, rois, offset = operands()
    gradient = jax.jit(jax.grad(lambda rois: pool(x, rois, offset).sum()))(rois)
    np.testing.assert_array_equal(gradient, np.zeros_like(rois))


@pytest.mark.parametrize("axes", [a for a in itertools.product([0, None], repeat=3) if a != (None,) * 3])
def test_vmap(axes, x64):
    batched, single = operands(lead=(3,)), operands()
    mixed = [b if axis == 0 else s for b, s, axis in zip(batched, single, axes, strict=True)]

    def gradients(x, rois, offset):
        return jax.value_and_grad(lambda x, offset: jnp.sin(pool(x, rois, offset)).sum(), (0, 1))(x, offset)

    rows = [gradients(*(m[i] if axis == 0 else m for m, axis in zip(mixed, axes, strict=True))) for i in range(3)]
    assert_close(jax.jit(jax.vmap(gradients, axes))(*mixed), jax.tree.map(lambda *r: jnp.stack(r), *rows))


@pytest.mark.parametrize("axes", [(0, 0, 0), (2, 1, 3), (None, 1, None)])
def test_vmap_of_jit(axes, x64):
    """The batch need not stand in front, and is the same as batch dimensions in front of all arrays."""
    batched, single = operands(lead=(3,)), operands()
    in_front = [b if axis is not None else np.stack([s] * 3) for b, s, axis in zip(batched, single, axes, strict=True)]
    moved = [s if axis is None else np.moveaxis(b, 0, axis) for b, s, axis in zip(batched, single, axes, strict=True)]
    assert_close(jax.vmap(jax.jit(pool), axes)(*moved), pool(*in_front))


def test_only_what_is_asked():
    x, rois, offset = map(np.float32, operands())
    targets = {"x": "dcn_roi_pool_input_cotangent", "offset": "dcn_roi_pool_offset_cotangent"}
    for argnum, name in ((0, "x"), (2, "offset")):
        gradient = jax.grad(lambda *arrays: jnp.sin(pool(*arrays)).sum(), argnum)
        text = jax.jit(gradient).lower(x, rois, offset).compile().as_text()
        found = {operand for operand, target in targets.items() if f'"{target}"' in text}
        assert found == {name}
        assert 'custom_call_target="dcn_roi_pool"' in text


def test_results_repeat():
    x, rois, offset = map(np.float32, operands())
    gradient = jax.jit(jax.grad(lambda x, offset: jnp.sin(pool(x, rois, offset)).sum(), (0, 1)))
    first, second = gradient(x, offset), gradient(x, offset)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
