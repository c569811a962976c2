"""Cases whose data are float32 or 16 bits wide, and the check of their results against the numpy reference."""

import itertools

import jax.numpy as jnp
import numpy as np

from tests.helpers.deform_conv.cases import assert_close, cast, compiled_pull_back

TOLERANCE = {"float32": 2.0**-19, "bfloat16": 2.0**-5, "float16": 2.0**-9}  # as a part of the largest value


def narrowed(case, dtype):
    """Operands and a cotangent whose values `dtype` has, and positions in float32."""
    operands, cotangent = cast(case.operands(), "float32"), case.cotangent()
    return (
        operands._replace(x=jnp.asarray(operands.x, dtype), weight=jnp.asarray(operands.weight, dtype)),
        jnp.asarray(cotangent, dtype),
    )


def check(case, dtype, operands, cotangent, backend):
    y, gradients = compiled_pull_back(case, backend)(cotangent, operands)
    exact_y, exact = case.expected(*cast((cotangent, operands), "float64"))
    for actual, expected in itertools.chain([(y, exact_y)], zip(gradients, exact, strict=True)):
        if expected is not None:
            scale = np.abs(np.where(np.isfinite(expected), expected, 0)).max(initial=0)
            assert_close(actual, expected, 0, TOLERANCE[dtype] * scale)
