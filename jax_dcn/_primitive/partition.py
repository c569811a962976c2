"""Splits a function over devices for XLA's partitioner: each device computes a shard of the results.

The dimensions of arrays have names. Dimensions of the same name are sharded over the same mesh axes, into equal shards,
and a dimension without a name is replicated. Each device applies the function to its shards of the arguments. A result
that lacks a name that is sharded is a sum over the devices, as the weight's cotangent is a sum over the images: it is
all-reduced.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from jax_dcn._primitive import jax_internals
from jax_dcn._primitive.meshes import Meshes, spec_of_gspmd
from jax_dcn._primitive.promotion import sum_dtype

Names = tuple[str | None, ...]
MeshAxes = tuple[str, ...]


class NamedArray(NamedTuple):
    """An argument or a result: the names and the lengths of its dimensions, and its dtype."""

    names: Names
    shape: tuple[int, ...]
    dtype: jnp.dtype


class Shard(NamedTuple):
    """A device's shard of the dimensions of one name: one of `num_shards` equal ones, beginning at index `start`."""

    num_shards: int
    start: ArrayLike


class ShardedFunction(Protocol):
    """Computes shards of results from shards of arguments.

    `shards` holds a `Shard` for each name that is sharded. `all_reduced` says of each result whether it will be
    all-reduced.
    """

    def __call__(
        self, *args: jax.Array, shards: Mapping[str, Shard], all_reduced: Sequence[bool]
    ) -> tuple[jax.Array, ...]: ...


def assign(
    names: Sequence[Names], specs: Sequence[PartitionSpec], sizes: Mapping[str, int], mesh: Mesh | AbstractMesh
) -> dict[str, MeshAxes]:
    """The mesh axes over which each name is sharded. The first array that is sharded along a name decides.

    A mesh axis shards only one name. It shards none if the shards would be unequal: XLA would pad them with arbitrary
    values, which an all-reduce would add.
    """
    mesh_axes: dict[str, MeshAxes] = {}
    free = set(mesh.axis_names)
    for name, entry in _entries(names, specs):
        axes: MeshAxes = ()
        for axis in entry:
            if axis not in free or sizes[name] % _shard_count((*axes, axis), mesh):
                break
            axes = (*axes, axis)
        if axes and name not in mesh_axes:
            mesh_axes[name] = axes
            free.difference_update(axes)
    return mesh_axes


def spec_of(names: Names, mesh_axes: Mapping[str, MeshAxes]) -> PartitionSpec:
    return PartitionSpec(*(None if name is None else mesh_axes.get(name) for name in names))


def widened(array: jax.Array) -> jax.Array:
    """`array` in the dtype in which sums are taken."""
    return array.astype(sum_dtype(array.dtype))


def unsharded(function: ShardedFunction, results: Sequence[NamedArray]) -> Callable[..., tuple[jax.Array, ...]]:
    """`function` of whole arguments, with its results rounded to the dtypes of `results`."""

    def of_unsharded(*args: jax.Array) -> tuple[jax.Array, ...]:
        outs = function(*args, shards={}, all_reduced=[False] * len(results))
        return tuple(out.astype(like.dtype) for out, like in zip(outs, results, strict=True))

    return of_unsharded


def partitioned(
    function: ShardedFunction,
    arguments: Sequence[NamedArray],
    results: Sequence[NamedArray],
    sizes: Mapping[str, int],
    meshes: Meshes,
) -> Callable[..., tuple[jax.Array, ...]]:
    """`function` as a function of its arguments that XLA's partitioner may shard.

    Args:
      function: computes shards of the results. An all-reduce runs in the dtype in which `function` returns the result,
        or in float32 if that is wider. The sum is then rounded to the dtype of `results`.
      arguments, results: describe the unsharded arrays.
      sizes: the largest number of shards of each name. The lengths of its dimensions are multiples of it.
      meshes: the devices.
    """

    def partition(_: Any, args: Sequence[Any], outs: Sequence[Any]) -> tuple[Any, ...]:
        names = [array.names for array in (*arguments, *results)]
        specs = [spec_of_gspmd(array, meshes.auto_axes) for array in (*args, *outs)]
        mesh_axes = assign(names, specs, sizes, meshes.auto_axes)
        # A result that lacks a sharded name is summed over the mesh axes of this name.
        summed_axes = [
            tuple(axis for name in mesh_axes if name not in like.names for axis in mesh_axes[name]) for like in results
        ]

        def shard(name: str) -> Shard:
            count = _shard_count(mesh_axes[name], meshes.auto_axes)
            return Shard(count, jax.lax.axis_index(mesh_axes[name]) * (sizes[name] // count))

        def finished(out: jax.Array, axes: MeshAxes, like: NamedArray) -> jax.Array:
            if axes:
                out = jax.lax.psum(widened(out), axes)
            return out.astype(like.dtype)

        def of_device(*args: jax.Array) -> tuple[jax.Array, ...]:
            # Under an Explicit mesh jax 0.11 annotates the psum with the sharding of its terms, which XLA refuses.
            with jax_internals.no_mesh():
                shards = {name: shard(name) for name in mesh_axes}
                outs = function(*args, shards=shards, all_reduced=[bool(axes) for axes in summed_axes])
                return tuple(map(finished, outs, summed_axes, results))

        def shardings(arrays: Sequence[NamedArray]) -> tuple[NamedSharding, ...]:
            return tuple(NamedSharding(meshes.auto_axes, spec_of(array.names, mesh_axes)) for array in arrays)

        return meshes.all_devices, of_device, shardings(results), shardings(arguments)

    # jit, because a function for custom_partitioning must not close over arrays.
    wrapped = jax_internals.custom_partitioning(jax.jit(unsharded(function, results)))
    # jax's own decoding of shardings fails if a dimension is sharded over a sub-axis of the mesh.
    rule = _sharding_rule(arguments, results, sizes)
    wrapped.def_partition(partition, sharding_rule=rule, decode_shardings=False)
    return wrapped


def _entries(names: Sequence[Names], specs: Sequence[PartitionSpec]) -> Iterator[tuple[str, MeshAxes]]:
    """Each name together with the mesh axes over which a dimension of this name is sharded."""
    for array_names, spec in zip(names, specs, strict=True):
        for name, entry in zip(array_names, spec, strict=False):
            if name is not None and entry is not None and entry is not PartitionSpec.UNCONSTRAINED:
                yield name, entry if isinstance(entry, tuple) else (entry,)


def _shard_count(axes: MeshAxes, mesh: Mesh | AbstractMesh) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def _sharding_rule(arguments: Sequence[NamedArray], results: Sequence[NamedArray], sizes: Mapping[str, int]) -> Any:
    """The names as factors of Shardy: each is the major factor of its dimensions. All other factors are replicated."""
    dimensions = [pair for array in (*arguments, *results) for pair in zip(array.names, array.shape, strict=True)]
    fully_shardable = {name for name, length in dimensions if name is not None and 1 < length == sizes[name]}
    replicated: list[str] = []
    lengths: dict[str, Any] = {}

    def factor(name: str | None, length: int) -> Any:
        if name in fully_shardable and length == sizes[name]:
            return name
        rest = f"replicated{len(replicated)}"
        replicated.append(rest)
        if name is None or sizes[name] <= 1:
            return rest
        lengths[rest] = length // sizes[name]
        if name not in fully_shardable:
            lengths[name] = sizes[name]
        return jax_internals.CompoundFactor(name, rest)

    def mappings(arrays: Sequence[NamedArray]) -> tuple[Any, ...]:
        return tuple(jax_internals.ArrayMapping(*map(factor, array.names, array.shape)) for array in arrays)

    return jax_internals.SdyShardingRule(
        mappings(arguments), mappings(results), need_replication_factors=tuple(replicated), **lengths
    )
