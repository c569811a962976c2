"""Only the matrix products of a convolution, of columns that are already in memory: what remains is the sampling."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.contenders import Unavailable, compiled

TAKES = ("columns", "weight")
dot = partial(jnp.einsum, preferred_element_type=jnp.float32)


def prepare(problem, backward):
    if problem.options["groups"] != 1:
        raise Unavailable("not implemented with groups")
    columns = im2col(problem)
    ready = problem._replace(operands={**problem.operands, "columns": columns}, varied=TAKES, options={})
    call = compiled.prepare(multiply, TAKES, ready, backward)
    return call._replace(arrays=lambda result: call.arrays({k: v for k, v in result.items() if k != "columns"}))


def im2col(problem):
    """The columns of a convolution without offsets and mask: [images, rows, columns, taps · channels]."""
    dilation, stride = problem.options["dilation"], problem.options["stride"]
    x, (*kernel, channels, _) = problem.operands["x"], problem.operands["weight"].shape
    patches = lax.conv_general_dilated_patches(
        x,
        kernel,
        (stride,) * 2,
        [(dilation,) * 2] * 2,
        rhs_dilation=(dilation,) * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=lax.Precision.HIGHEST,
    )
    *pixels, _ = patches.shape
    by_tap = jnp.swapaxes(patches.reshape(*pixels, channels, kernel[0] * kernel[1]), -1, -2)
    return by_tap.reshape(*pixels, -1).astype(x.dtype)


@jax.custom_vjp
def multiply(columns, weight):
    return dot("...d,do->...o", columns, weight.reshape(-1, weight.shape[-1])).astype(columns.dtype)


def forward(columns, weight):
    return multiply(columns, weight), (columns, weight)


def backward(residuals, ct):
    columns, weight = residuals
    features = ct.shape[-1]
    d_columns = dot("...o,do->...d", ct, weight.reshape(-1, features))
    # The barrier makes XLA transpose this array in memory, as its fast matrix products on a CPU require.
    transposed = lax.optimization_barrier(ct.reshape(-1, features).T.reshape(-1)).reshape(features, -1)
    d_weight = lax.optimization_barrier(dot("op,pd->od", transposed, columns.reshape(-1, columns.shape[-1])))
    return d_columns.astype(columns.dtype), d_weight.T.reshape(weight.shape).astype(weight.dtype)


multiply.defvjp(forward, backward)
