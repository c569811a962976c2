"""The deformable convolution of volumes."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.baselines import Operator, Problem, compiled
from benchmarks.measurements.deform_conv import XLA, undeformed

VARIED = ("x", "offset", "weight")


class Shape(NamedTuple):
    """Volumes [batch, *size, channels] and a kernel of 3 x 3 x 3 taps, without a mask."""

    batch: int
    size: tuple[int, int, int]
    channels: int

    def __str__(self):
        return f"{self.batch} x {' x '.join(map(str, self.size))} x {self.channels}, 3 x 3 x 3 taps, padding SAME"


def problem(shape, dtype):
    random = np.random.default_rng(0)

    def normal(*size, scale=1.0):
        return jnp.asarray(random.standard_normal(size, np.float32) * np.float32(scale), dtype)

    place = (shape.batch, *shape.size)
    return Problem(
        operands={
            "x": normal(*place, shape.channels),
            "offset": jnp.asarray(random.standard_normal((*place, 81), np.float32)),
            "weight": normal(3, 3, 3, shape.channels, shape.channels, scale=0.02),
        },
        varied=VARIED,
        cotangent=normal(*place, shape.channels),
        dtype=dtype,
        options={},
    )


def ordinary(x, weight):
    return jax.lax.conv_general_dilated(x, weight, (1, 1, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC"))


CONVOLUTION_OF_VOLUMES = Operator(
    name="deform_conv3d",
    function=jax_dcn.deform_conv3d,
    shapes={"V1": Shape(2, (16, 56, 56), 64)},
    problem=problem,
    implementations={
        "jax_dcn": compiled.implementation(jax_dcn.deform_conv3d, VARIED),
        XLA: compiled.implementation(ordinary, ("x", "weight"), agrees_at=undeformed),
        "reference": compiled.implementation(partial(jax_dcn.deform_conv3d, backend="reference"), VARIED),
    },
    lower_bounds=(XLA,),
)
