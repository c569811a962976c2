"""Arrays split over CPU devices, of which any machine can simulate eight."""

import math

import jax
from jax.sharding import AxisType, NamedSharding

from benchmarks.lowering.hlo import collectives
from tests.helpers.deform_conv.cases import assert_close


def make_mesh(axis_type="Auto", shape=(4, 2)):
    names = ("a", "b")[: len(shape)]
    devices = jax.devices("cpu")[: math.prod(shape)]
    return jax.make_mesh(shape, names, axis_types=(getattr(AxisType, axis_type),) * len(shape), devices=devices)


def place(mesh, operands, specs):
    """Shards a named tuple of arrays, or None, by `specs`."""
    pairs = zip(operands, specs, strict=True)
    return type(operands)(*(None if a is None else jax.device_put(a, NamedSharding(mesh, s)) for a, s in pairs))


def check(mesh, function, placed, operands, tolerance=1e-4, whole=None):
    """Checks that the program computes the same from `placed` as from `operands` on one device.

    Returns its collectives and its result. If `function` itself chooses a sharding, `whole` replaces it on one device.
    """
    with jax.set_mesh(mesh):
        compiled = jax.jit(function).lower(placed).compile()
        answer = compiled(placed)
    assert_close(answer, jax.jit(whole or function)(operands), tolerance, tolerance)
    return collectives(compiled), answer


def is_split(array, mesh, spec):
    return array.sharding.is_equivalent_to(NamedSharding(mesh, spec), array.ndim)
