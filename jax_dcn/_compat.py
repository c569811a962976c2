"""Everything that depends on how jax is built inside, each with its reason."""

from collections.abc import Sequence

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, use_abstract_mesh


def result_aval(like, shape, dtype, leading: int = 0):
    """The type of a result: devices and varying axes as of `like`, its first `leading` dimensions split as those.

    A bare `ShapedArray(shape, dtype)` would lose the mesh under Explicit sharding and the varying axes in `shard_map`.
    """
    aval = like.update(shape=tuple(shape), dtype=dtype, weak_type=False)
    if like.sharding.mesh.empty:
        return aval
    spec = (*tuple(like.sharding.spec)[:leading], *[None] * (len(shape) - leading))
    return aval.update(sharding=NamedSharding(like.sharding.mesh, PartitionSpec(*spec)))


def lower_apart_from_explicit_mesh(lower, ctx, *args, **params):
    """`lower(ctx, *args, **params)`, written as for one device where the mesh is Explicit: XLA's partitioner splits it.

    Under such a mesh every reshape and slice of a split dimension would have to say how its result is split.
    """
    meshes = [aval.sharding.mesh for aval in ctx.avals_in]
    if not any(AxisType.Explicit in mesh.axis_types for mesh in meshes):
        return lower(ctx, *args, **params)
    with use_abstract_mesh(AbstractMesh((), ())):
        avals = [aval.update(sharding=None) for aval in ctx.avals_in]
        return lower(ctx.replace(avals_in=avals), *args, **params)


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
