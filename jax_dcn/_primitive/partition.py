"""Splits a function over devices, as XLA's partitioner asks for: each device computes a part of the result.

The dimensions of arrays have names. What carries a name is split alike wherever it is split, into equal parts; a
dimension without one is whole on every device. A device then applies the function to its parts of the arguments, and a
result that lacks a name is the sum of what the devices have for it: as the weight's cotangent is, over the images.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule, custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from jax_dcn._primitive import jax_internals

Names = tuple[str | None, ...]


class Array(NamedTuple):
    """An argument or a result: the names of its dimensions, their lengths, and the type of its numbers."""

    names: Names
    shape: tuple[int, ...]
    dtype: jnp.dtype


class Part(NamedTuple):
    """What a device has of a name that is split: one of so many equal parts, from position `start` on."""

    parts: int
    start: jax.Array


def assign(names: Sequence[Names], specs: Sequence[PartitionSpec], sizes: dict[str, int], mesh) -> dict[str, tuple]:
    """Which axes of the mesh each name is split over, by how arrays are split: the first that says so decides.

    An axis splits one name. Where it would cut unequal parts it splits none: XLA would fill them up with anything, and
    sums would take that in.
    """
    split: dict[str, tuple] = {}
    free = set(mesh.axis_names)
    for name, entry in _entries(names, specs):
        axes: tuple = ()
        for axis in entry:
            if axis not in free or sizes[name] % _parts((*axes, axis), mesh):
                break
            axes = (*axes, axis)
        if axes and name not in split:
            split[name] = axes
            free.difference_update(axes)
    return split


def spec_of(names: Names, split: dict[str, tuple]) -> PartitionSpec:
    return PartitionSpec(*(None if name is None else split.get(name) for name in names))


def widened(array: jax.Array) -> jax.Array:
    """In the type that sums are taken in."""
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def whole(call: Callable, results: Sequence[Array]) -> Callable:
    """`call` of whole arguments, its results rounded to the types of `results`."""

    def function(*args):
        outs = call(*args, parts={}, summed=[False] * len(results))
        return tuple(out.astype(like.dtype) for out, like in zip(outs, results, strict=True))

    return function


def partitioned(
    call: Callable,
    arguments: Sequence[Array],
    results: Sequence[Array],
    sizes: dict[str, int],
    meshes: jax_internals.Meshes,
) -> Callable:
    """`call(*arguments, parts, summed)`, a tuple, as a function of the arguments that XLA may split.

    Args:
      call: takes the arguments, or equal parts of them; a `Part` for each name that is split; and for each result
        whether it is summed over devices. It is summed in the type in which it is returned, or in float32 if that is
        wider, and then rounded to the type of `results`.
      sizes: into how many parts each name may be split at most; the lengths of its dimensions are multiples of it.
    """

    def partition(_, args, outs):
        names = [array.names for array in (*arguments, *results)]
        specs = [jax_internals.spec_of_gspmd(array, meshes.splitting) for array in (*args, *outs)]
        split = assign(names, specs, sizes, meshes.splitting)
        sums = [tuple(axis for name in split if name not in like.names for axis in split[name]) for like in results]

        def part(name):
            count = _parts(split[name], meshes.splitting)
            return Part(count, jax.lax.axis_index(split[name]) * (sizes[name] // count))

        def finished(out, axes, like):
            if axes:
                out = jax.lax.psum(widened(out), axes)
            return out.astype(like.dtype)

        def of_device(*args):
            # Under an Explicit mesh a sum would say how its terms are split, which XLA refuses (by jax 0.11).
            with jax_internals.no_mesh():
                parts = {name: part(name) for name in split}
                return tuple(map(finished, call(*args, parts=parts, summed=list(map(bool, sums))), sums, results))

        def shardings(arrays):
            return tuple(NamedSharding(meshes.splitting, spec_of(array.names, split)) for array in arrays)

        return meshes.everywhere, of_device, shardings(results), shardings(arguments)

    # jit, for a function to be partitioned must hold no arrays of its own.
    function = custom_partitioning(jax.jit(whole(call, results)))
    # jax's own decoding of shardings fails where a dimension is split over a part of an axis.
    rule = _sharding_rule(arguments, results, sizes)
    function.def_partition(partition, sharding_rule=rule, decode_shardings=False)
    return function


def _entries(names, specs) -> Iterator[tuple[str, tuple]]:
    """Each name with the axes that a dimension of it is split over."""
    for array_names, spec in zip(names, specs, strict=True):
        for name, entry in zip(array_names, spec, strict=False):
            if name is not None and entry is not None and entry is not PartitionSpec.UNCONSTRAINED:
                yield name, entry if isinstance(entry, tuple) else (entry,)


def _parts(axes, mesh) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def _sharding_rule(arguments, results, sizes) -> SdyShardingRule:
    """The names as Shardy's factors, the first ones of their dimensions; what else there is must be whole."""
    dimensions = [pair for array in (*arguments, *results) for pair in zip(array.names, array.shape, strict=True)]
    alone = {name for name, length in dimensions if name is not None and 1 < length == sizes[name]}
    unsplit: list[str] = []
    lengths = {}

    def factor(name, length):
        if name in alone and length == sizes[name]:
            return name
        rest = f"unsplit{len(unsplit)}"
        unsplit.append(rest)
        if name is None or sizes[name] <= 1:
            return rest
        lengths[rest] = length // sizes[name]
        if name not in alone:
            lengths[name] = sizes[name]
        return CompoundFactor(name, rest)

    def mappings(arrays):
        return tuple(ArrayMapping(*map(factor, array.names, array.shape)) for array in arrays)

    arrays = mappings(arguments), mappings(results)
    return SdyShardingRule(*arrays, need_replication_factors=tuple(unsplit), **lengths)
