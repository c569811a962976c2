"""The operator on the parts of arrays that `shard_map` and `pmap` give each device."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.helpers.deform_conv.cases import Operands, cast
from tests.helpers.deform_conv.layer import (
    BATCHED,
    apply,
    assert_near,
    loss,
    of_batch,
    reference,
    value_and_grad_of_reference,
)
from tests.helpers.sharding import check, make_mesh, place

from .test_partitioning import SAME, gradients, shared_by

pytestmark = pytest.mark.platforms("cpu")

SPECS = Operands(*(P("a") if name in BATCHED else P() for name in Operands._fields))


def split_over(devices, axis_type="Auto"):
    """(mesh, operands with one image per device, the same operands unsharded)."""
    mesh, operands = make_mesh(axis_type, (devices,)), of_batch(devices)
    return mesh, place(mesh, operands, SPECS), operands


@pytest.mark.parametrize("axis_type, check_vma", [("Auto", True), ("Auto", False), ("Explicit", True)])
def test_shard_map(axis_type, check_vma):
    """Each device has its images; the gradient of the replicated weight sums over the devices."""
    mesh, placed, operands = split_over(8, axis_type)
    split = jax.shard_map(
        lambda operands: jax.lax.psum(loss(operands), "a"),
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

    split = jax.shard_map(push(apply), mesh=mesh, in_specs=(SPECS,), out_specs=P("a"))
    assert_near(jax.jit(split)(placed), jax.jit(push(reference))(operands))


def test_hessian_of_shard_map():
    mesh, placed, operands = split_over(4)

    def curvature(function):
        return jax.jit(jax.hessian(lambda bias, o: function(o._replace(bias=bias, mask=o.mask * bias[0]))))

    split = jax.shard_map(lambda o: jax.lax.psum(loss(o), "a"), mesh=mesh, in_specs=(SPECS,), out_specs=P())
    by_reference = functools.partial(loss, function=reference)
    assert_near(curvature(split)(placed.bias, placed), curvature(by_reference)(operands.bias, operands))


@pytest.mark.parametrize("axis_type, check_vma", [("Auto", True), ("Auto", False), ("Explicit", True)])
def test_partial_manual_shard_map(axis_type, check_vma):
    """One axis of the mesh is the function's, the other is left to XLA's partitioner."""
    mesh, operands = make_mesh(axis_type), of_batch(8)
    specs = Operands(*(P(("a", "b")) if name in BATCHED else P() for name in Operands._fields))
    manual = Operands(*(P("a") if name in BATCHED else P() for name in Operands._fields))
    split = jax.shard_map(
        lambda operands: jax.lax.psum(loss(operands), "a"),
        mesh=mesh,
        in_specs=(manual,),
        out_specs=P(),
        axis_names={"a"},
        check_vma=check_vma,
    )
    answer = jax.jit(jax.value_and_grad(split))(place(mesh, operands, specs))
    assert_near(answer, value_and_grad_of_reference(operands))


@pytest.mark.parametrize("manual, free", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("kind", ["images", "rows", "features"])
def test_what_a_partial_manual_shard_map_leaves(kind, manual, free):
    """The partitioner shards over the axis that is left. Guards against gathering there, and shards of other axes."""
    mesh = make_mesh()
    case = dataclasses.replace(SAME, batch=(8,))
    operands, data = cast(case.operands(), np.float32), P(manual)
    specs = {
        "images": Operands(*[P((manual, free))] * 2, P(), P(), P((manual, free))),
        "rows": Operands(data, P(manual, free), P(), P(), P(manual, free)),
        "features": Operands(data, data, P(None, None, None, free), P(free), data),
    }
    split = jax.shard_map(
        lambda operands: jax.lax.psum(jnp.sin(shared_by(case)(operands)).sum(), manual),
        mesh=mesh,
        in_specs=(Operands(data, data, P(), P(), data),),
        out_specs=P(),
        axis_names={manual},
    )
    placed = place(mesh, operands, specs[kind])
    exchanged, _ = check(mesh, jax.grad(split), placed, operands, 1e-3, whole=functools.partial(gradients, case))
    assert {c.kind for c in exchanged} == {"all-reduce"}
