"""A small layer, and a loss of it, for tests of transformations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from tests.helpers.deform_conv.numpy_reference import Convolution

from .cases import Case, assert_close, cast, convolve

# Its output has the shape of its input, so that it can be iterated.
LAYER = Case("layer", (3, 4), 2, 2, (2, 3), 2, (2,), Convolution(padding="SAME", feature_group_count=2))
apply = functools.partial(convolve, **LAYER.keywords)
reference = functools.partial(apply, backend="reference")
OPERANDS, TANGENTS = (cast(LAYER.operands(seed, offset_scale=1.0), np.float32) for seed in (0, 1))
assert_near = functools.partial(assert_close, rtol=1e-4, atol=1e-4)


def loss(operands, function=apply):
    return jnp.sin(function(operands)).sum()


value_and_grad_of_reference = jax.jit(jax.value_and_grad(functools.partial(loss, function=reference)))

BATCHED = ("x", "offset", "mask")


def of_batch(count):
    return cast(Case("sharded", (3, 4), 2, 2, (2, 3), 2, (count,), LAYER.convolution).operands(), np.float32)
