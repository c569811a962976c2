"""The meshes over which XLA's partitioner shards a computation, as its lowering rule and the partitioner know them."""

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from jax_dcn._primitive import jax_internals


class Meshes(NamedTuple):
    """The meshes of a computation that is partitioned: all devices, and the devices that shard an array.

    They differ only inside a `shard_map` over some of the mesh axes. There the devices that agree on these axes shard
    an array, over the other axes.
    """

    all_devices: Mesh
    auto_axes: Mesh


def meshes_to_partition(ctx: Any) -> Meshes | None:
    """The meshes over which XLA's partitioner will shard what is lowered in this context.

    None on one device and where `shard_map` has sharded arrays over all mesh axes. Also None for the partitioner before
    Shardy, which jax still has for a while: it gathers the operands of custom calls.
    """
    if not jax_internals.config("jax_use_shardy_partitioner"):
        return None
    devices: Any
    manual: frozenset[str] = frozenset()
    match ctx.module_context.axis_context:
        case object(mesh=mesh, manual_axes=manual):  # inside `shard_map`
            devices = mesh.devices if isinstance(mesh, Mesh) else None
        case object(device_assignment=devices, abstract_mesh=AbstractMesh() as mesh):
            pass
        case _:
            return None
    axes = [axis for pair in mesh.shape.items() for axis in _primes(*pair)]
    free = [name for axis, name, _ in axes if axis not in manual]
    if not free:
        return None
    if devices is None:
        warnings.warn(
            f"{jax_internals.PACKAGE} cannot be partitioned in a jax.shard_map over some axes of an AbstractMesh: each "
            "device gathers the operands and computes the whole result. Pass a Mesh to jax.shard_map instead",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    all_devices = Mesh(np.reshape(devices, [length for *_, length in axes]), [name for _, name, _ in axes])
    first = tuple(0 if axis in manual else slice(None) for axis, *_ in axes)
    return Meshes(all_devices, Mesh(all_devices.devices[first], free))


def _primes(axis: str, length: int) -> Iterator[tuple[str, str, int]]:
    """A mesh axis as several axes of prime lengths, because Shardy may shard a dimension over a sub-axis."""
    factor, number = 2, 0
    while length > 1:
        if length % factor:
            factor += 1
        else:
            yield axis, f"{axis} {number}", factor
            length, number = length // factor, number + 1


def spec_of_gspmd(array: Any, mesh: Mesh) -> PartitionSpec:
    """How an array that `custom_partitioning` describes is sharded.

    The result is a replicated array's if the axes of `mesh` cannot express the sharding.
    """
    try:
        spec: PartitionSpec = jax_internals.parse_flatten_op_sharding(array.sharding._hlo_sharding, mesh)[0]
        return spec
    except (AssertionError, NotImplementedError, StopIteration, ValueError):  # depending on why it cannot
        return PartitionSpec()
