"""Everything that depends on how jax is built inside, each with its reason."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax._src.sharding_impls import parse_flatten_op_sharding
from jax.extend.mlir import ir
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, use_abstract_mesh

PACKAGE = __name__.partition(".")[0]


def result_aval(like, shape, dtype, spec=None):
    """The type of a result: devices and varying axes as of `like`, split by `spec`.

    A bare `ShapedArray(shape, dtype)` would lose the mesh under Explicit sharding and the varying axes in `shard_map`.
    """
    aval = like.update(shape=tuple(shape), dtype=dtype, weak_type=False)
    if like.sharding.mesh.empty:
        return aval
    spec = PartitionSpec(*[None] * len(shape)) if spec is None else spec
    return aval.update(sharding=NamedSharding(like.sharding.mesh, spec))


def no_mesh():
    """A context in which arrays are as on one device, whatever the mesh around it."""
    return use_abstract_mesh(AbstractMesh((), ()))


def lower_without_explicit_mesh(lower, ctx, *args, **params):
    """`lower(ctx, *args, **params)`, written as for one device where the mesh is Explicit: XLA's partitioner splits it.

    Under such a mesh every reshape and slice of a split dimension would have to say how its result is split.
    """
    meshes = [aval.sharding.mesh for aval in ctx.avals_in]
    if not any(AxisType.Explicit in mesh.axis_types for mesh in meshes):
        return lower(ctx, *args, **params)
    with no_mesh():
        avals = [jax.core.ShapedArray(aval.shape, aval.dtype) for aval in ctx.avals_in]
        return lower(ctx.replace(avals_in=avals), *args, **params)


class Meshes(NamedTuple):
    """What a partitioner's work is split over: all devices, for what they exchange, and those that split an array.

    They are the same but inside a `shard_map` over some axes: there the devices that have these in common split.
    """

    everywhere: Mesh
    splitting: Mesh


def meshes_to_partition(ctx) -> Meshes | None:
    """What XLA's partitioner, that of today, will split what is lowered over.

    None on one device, and where `shard_map` has split arrays over all axes; for the partitioner before Shardy too,
    which jax still has for a while: it gathers around the calls.
    """
    if not getattr(jax.config, "jax_use_shardy_partitioner", True):
        return None
    match ctx.module_context.axis_context:
        case mlir.SPMDAxisContext(mesh=Mesh() as mesh, manual_axes=manual):
            devices = mesh.devices
        case mlir.ShardingContext(device_assignment=tuple(devices), abstract_mesh=AbstractMesh() as mesh):
            manual = frozenset()
        case _:
            return None
    axes = [axis for pair in mesh.shape.items() for axis in _primes(*pair)]
    free = [name for axis, name, _ in axes if axis not in manual]
    if not free:
        return None
    everywhere = Mesh(np.reshape(devices, [length for *_, length in axes]), [name for _, name, _ in axes])
    first = tuple(0 if axis in manual else slice(None) for axis, *_ in axes)
    return Meshes(everywhere, Mesh(everywhere.devices[first], free))


def _primes(axis, length):
    """An axis as several, of prime lengths: Shardy may split a dimension over a part of an axis."""
    factor, number = 2, 0
    while length > 1:
        if length % factor:
            factor += 1
        else:
            yield axis, f"{axis} {number}", factor
            length, number = length // factor, number + 1


def spec_of_gspmd(array, mesh: Mesh) -> PartitionSpec:
    """How `custom_partitioning` says an array is split; as if whole where axes of `mesh` cannot say it."""
    try:
        return parse_flatten_op_sharding(array.sharding._hlo_sharding, mesh)[0]
    except (AssertionError, NotImplementedError, StopIteration, ValueError):  # by how it cannot
        return PartitionSpec()


def require_devices_during_lowering(primitive) -> None:
    """Has jax tell a rule of `primitive` for lowering which devices there are, which `custom_partitioning` needs.

    Such a primitive cannot be lowered for an AbstractMesh. There is no public way.
    """
    prim_requires_devices_during_lowering.add(primitive)


def all_axes_are_manual() -> bool:
    """Whether `shard_map` has split arrays over all axes of the mesh, so that nothing is left to the partitioner."""
    axis_types = jax.sharding.get_abstract_mesh().axis_types
    return bool(axis_types) and all(axis_type == AxisType.Manual for axis_type in axis_types)


def _varying(array) -> frozenset:
    return jax.typeof(array).manual_axis_type.varying


def vary_alike(arrays: Sequence) -> list:
    """`arrays`, all varying over the same mesh axes inside `shard_map`.

    A primitive's operands must, and the transpose of this cast is the sum that the gradient of a replicated operand
    needs. None stays None.
    """
    union = frozenset().union(*(_varying(a) for a in arrays if a is not None))

    def cast(array):
        missing = tuple(sorted(union - _varying(array)))
        return jax.lax.pcast(array, missing, to="varying") if missing else array

    return [None if a is None else cast(a) for a in arrays]


def annotate(results, text: str) -> None:
    """Writes on a call that is to be partitioned what it computes, and by which version of this package.

    It says so nowhere else: with `jax_remove_custom_partitioning_ptr_from_cache_key`, which has the persistent cache
    take calls of the same shapes for the same, one would get the program of another.
    """
    attribute = ir.StringAttr.get(f"{version(PACKAGE)} {text}")
    results[0].owner.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get({PACKAGE: attribute})


def move_to_front(arrays: Sequence, dims: Sequence) -> list:
    """`arrays` with the dimension that `vmap` maps in front; copies of one that is not mapped are split as the others.

    So split, under an Explicit mesh, is what is computed of them, too.
    """
    mapped = [(array, dim) for array, dim in zip(arrays, dims, strict=True) if dim is not None]
    (size,) = {array.shape[dim] for array, dim in mapped}
    shardings = [(jax.typeof(array).sharding, dim) for array, dim in mapped]
    split = next(((s.mesh, s.spec[dim]) for s, dim in shardings if s.spec[dim] is not None), None)

    def of_one(array, dim):
        if dim is not None:
            return jnp.moveaxis(array, dim, 0)
        if split is None:
            return lax.broadcast(array, (size,))
        mesh, entry = split
        spec = PartitionSpec(entry, *jax.typeof(array).sharding.spec)
        return lax.broadcast(array, (size,), out_sharding=NamedSharding(mesh, spec))

    return list(map(of_one, arrays, dims))
