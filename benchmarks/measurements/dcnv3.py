"""DCNv3, which is also the operator of DCNv4: shapes, operands and contenders."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.contenders import Contender, Problem, bare_loop, compiled, pure_jax

NAME = "dcnv3"
FLOORS = (bare_loop.NAME,)
ABOUT_FLOORS = bare_loop.ABOUT
OPERANDS = ("x", "offset", "mask")


class Shape(NamedTuple):
    """A 3x3 window on x [batch, size, size, groups · channels]."""

    batch: int
    size: int
    groups: int
    channels: int = 32

    def __str__(self):
        return f"{self.batch} x {self.size} x {self.size}, {self.groups} groups of {self.channels}"


# The first three stages of InternImage, for images of 224 x 224.
SHAPES = {"W1": Shape(2, 56, 4), "W2": Shape(2, 28, 8), "W3": Shape(2, 14, 16)}


def problem(shape, dtype):
    random = np.random.default_rng(0)
    size = (shape.batch, shape.size, shape.size)
    taps = 9 * shape.groups

    def normal(*size, dtype=dtype):
        return jnp.asarray(random.standard_normal(size, np.float32), dtype)

    return Problem(
        operands={
            "x": normal(*size, shape.groups * shape.channels),
            "offset": normal(*size, 2 * taps, dtype=jnp.float32),
            "mask": jnp.asarray(random.random((*size, taps), np.float32)),
        },
        varied=OPERANDS,
        cotangent=normal(*size, shape.groups * shape.channels),
        dtype=dtype,
        options={"kernel_size": 3, "padding": 1, "groups": shape.groups},
    )


CONTENDERS = {
    "jax_dcn": compiled.contender(jax_dcn.dcnv3, OPERANDS),
    bare_loop.NAME: Contender(bare_loop.prepare_dcnv3),
    "pure JAX": compiled.contender(pure_jax.dcnv3, OPERANDS),
    "reference": compiled.contender(partial(jax_dcn.dcnv3, backend="reference"), OPERANDS),
}
