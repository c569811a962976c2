"""Arrays split over several devices: those of the CPU, for any machine can have eight."""

import functools

import jax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from .cases import Operands
from .layer import BATCHED, apply, assert_near, loss, of_batch, reference, value_and_grad_of_reference

pytestmark = pytest.mark.platforms("cpu")

SPECS = Operands(*(P("data") if name in BATCHED else P() for name in Operands._fields))


def split_over(devices, axis_type="Auto"):
    """(mesh, operands with one image a device, the same not split)."""
    axis_types = (getattr(jax.sharding.AxisType, axis_type),)
    mesh = jax.make_mesh((devices,), ("data",), axis_types=axis_types, devices=jax.devices("cpu")[:devices])
    operands = of_batch(devices)
    placed = (jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in zip(operands, SPECS, strict=True))
    return mesh, Operands(*placed), operands


@pytest.mark.parametrize("axis_type, check_vma", [("Auto", True), ("Auto", False), ("Explicit", True)])
def test_shard_map(axis_type, check_vma):
    """Each device has its images; the gradient of the replicated weight sums over the devices."""
    mesh, placed, operands = split_over(8, axis_type)
    split = jax.shard_map(
        lambda operands: jax.lax.psum(loss(operands), "data"),
        mesh=mesh,
        in_specs=(SPECS,),
        out_specs=P(),
        check_vma=check_vma,
    )
    assert_near(jax.jit(jax.value_and_grad(split))(placed), value_and_grad_of_reference(operands))


def test_grad_inside_shard_map():
    """There the gradient of a replicated operand is replicated: summed already."""
    mesh, placed, operands = split_over(4)
    inside = jax.shard_map(jax.grad(loss), mesh=mesh, in_specs=(SPECS,), out_specs=SPECS)
    assert_near(jax.jit(inside)(placed), value_and_grad_of_reference(operands)[1])


def test_pmap():
    operands = of_batch(4)
    axes = Operands(*(0 if name in BATCHED else None for name in Operands._fields))
    each = jax.pmap(jax.grad(loss), in_axes=(axes,), devices=jax.devices("cpu")[:4])(operands)
    whole = value_and_grad_of_reference(operands)[1]
    assert_near(each.x, whole.x)
    assert_near(each.weight.sum(0), whole.weight)


def test_jvp_inside_shard_map():
    mesh, placed, operands = split_over(4)

    def push(function):
        return lambda operands: jax.jvp(function, (operands,), (operands,))[1]

    split = jax.shard_map(push(apply), mesh=mesh, in_specs=(SPECS,), out_specs=P("data"))
    assert_near(jax.jit(split)(placed), jax.jit(push(reference))(operands))


def test_hessian_of_shard_map():
    mesh, placed, operands = split_over(4)

    def curvature(function):
        return jax.jit(jax.hessian(lambda bias, o: function(o._replace(bias=bias, mask=o.mask * bias[0]))))

    split = jax.shard_map(lambda o: jax.lax.psum(loss(o), "data"), mesh=mesh, in_specs=(SPECS,), out_specs=P())
    by_reference = functools.partial(loss, function=reference)
    assert_near(curvature(split)(placed.bias, placed), curvature(by_reference)(operands.bias, operands))


@pytest.mark.parametrize("axis_type", ["Auto", "Explicit"])
def test_jit_over_split_operands(axis_type):
    """Plain jit over arrays split by image is right, however the work is then divided."""
    mesh, placed, operands = split_over(4, axis_type)
    with jax.set_mesh(mesh):
        answer = jax.jit(jax.value_and_grad(loss))(placed)
    assert_near(answer, value_and_grad_of_reference(operands))
