"""The names of JAX that it does not document, and what the package has to know of how JAX works inside.

jax documents `jax`, `jax.numpy`, `jax.lax`, `jax.sharding`, `jax.ffi`, `jax.export`, `jax.dtypes`, `jax.tree_util`, the
options of `jax.config` and a few names of `jax.core`. A release of jax may move any other name. The package imports
those that it uses here only, so that one message says which releases have them.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, use_abstract_mesh

PACKAGE = __name__.partition(".")[0]
TESTED_VERSIONS = "0.10.2, 0.11.2 and 0.12.0.1"

try:
    from jax._src.dispatch import prim_requires_devices_during_lowering
    from jax._src.sharding_impls import parse_flatten_op_sharding as parse_flatten_op_sharding
    from jax._src.xla_bridge import backends_are_initialized as backends_are_initialized
    from jax.experimental.custom_partitioning import ArrayMapping as ArrayMapping
    from jax.experimental.custom_partitioning import CompoundFactor as CompoundFactor
    from jax.experimental.custom_partitioning import SdyShardingRule as SdyShardingRule
    from jax.experimental.custom_partitioning import custom_partitioning as custom_partitioning
    from jax.extend.core import Primitive as Primitive
    from jax.extend.core import jaxpr_as_fun as jaxpr_as_fun
    from jax.extend.mlir import ir
    from jax.interpreters.ad import Zero as Zero
    from jax.interpreters.ad import instantiate_zeros as instantiate_zeros
    from jax.interpreters.ad import is_undefined_primal as is_undefined_primal
    from jax.interpreters.ad import primitive_jvps as primitive_jvps
    from jax.interpreters.ad import primitive_transposes as primitive_transposes
    from jax.interpreters.batching import primitive_batchers as primitive_batchers
    from jax.interpreters.mlir import lower_fun as lower_fun
    from jax.interpreters.mlir import register_lowering as register_lowering
    from jax.interpreters.xla import apply_primitive as apply_primitive
except ImportError as error:
    raise ImportError(
        f"{PACKAGE} cannot use jax {jax.__version__}: {error}. It was tested with jax {TESTED_VERSIONS}: "
        "install one of these releases"
    ) from error


def config(option: str) -> Any:
    """The value of an option of jax, which has no types for its options."""
    return getattr(jax.config, option)


def result_aval(
    like: jax.core.ShapedArray, shape: Sequence[int], dtype: Any, spec: PartitionSpec | None = None
) -> jax.core.ShapedArray:
    """The aval of a result, which has the mesh and the varying axes of `like` and is sharded by `spec`.

    A bare `ShapedArray(shape, dtype)` would lose the mesh under Explicit sharding and the varying axes in `shard_map`.
    """
    changes: dict[str, Any] = {"shape": tuple(shape), "dtype": dtype, "weak_type": False}
    if not like.sharding.mesh.empty:
        spec = PartitionSpec(*[None] * len(shape)) if spec is None else spec
        changes["sharding"] = NamedSharding(like.sharding.mesh, spec)
    return like.update(**changes)


def reshape(array: jax.Array, shape: Sequence[int]) -> jax.Array:
    """`array.reshape(shape)`, in which dimensions between equal first and equal last ones are merged, or one is split.

    Under an Explicit mesh jax refuses some shardings of these dimensions. Here the result is sharded along the first of
    them if only that is sharded, into equal shards; otherwise they are gathered.
    """
    if not _is_explicit(jax.typeof(array)):
        return array.reshape(shape)
    mesh, spec = jax.typeof(array).sharding.mesh, jax.typeof(array).sharding.spec
    old, new = array.shape, tuple(shape)
    first = _num_equal(old, new)
    last = _num_equal(old[first:][::-1], new[first:][::-1])
    entries = (*spec, *[None] * (len(old) - len(spec)))
    old_middle, new_middle = entries[first : len(old) - last], [None] * (len(new) - last - first)
    if new_middle and any(old_middle[:1]) and not any(old_middle[1:]):
        mesh_axes = old_middle[0] if isinstance(old_middle[0], tuple) else old_middle[:1]
        if new[first] % math.prod(mesh.shape[axis] for axis in mesh_axes) == 0:
            new_middle[0] = old_middle[0]
    new_spec = PartitionSpec(*entries[:first], *new_middle, *entries[len(old) - last :])
    return lax.reshape(array, new, out_sharding=NamedSharding(mesh, new_spec))


def _num_equal(lengths: Sequence[int], others: Sequence[int]) -> int:
    """How many of the first lengths are equal."""
    pairs = zip(lengths, others, strict=False)
    return next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(lengths), len(others)))


def move_to_front(arrays: Sequence[jax.Array], dims: Sequence[int | None]) -> list[jax.Array]:
    """Moves the dimension that `vmap` maps to the front. Arrays that are not mapped are broadcast.

    Under an Explicit mesh a broadcast array is sharded along the new dimension as the mapped arrays are, so that the
    results are, too.
    """
    mapped = [(array, dim) for array, dim in zip(arrays, dims, strict=True) if dim is not None]
    (size,) = {array.shape[dim] for array, dim in mapped}
    shardings = [(jax.typeof(array).sharding, dim) for array, dim in mapped]
    split = next(((s.mesh, s.spec[dim]) for s, dim in shardings if s.spec[dim] is not None), None)

    def with_dimension(array: jax.Array, dim: int | None) -> jax.Array:
        if dim is not None:
            return jnp.moveaxis(array, dim, 0)
        if split is None:
            return lax.broadcast(array, (size,))
        mesh, entry = split
        spec = PartitionSpec(entry, *jax.typeof(array).sharding.spec)
        return lax.broadcast(array, (size,), out_sharding=NamedSharding(mesh, spec))

    return list(map(with_dimension, arrays, dims))


def vary_alike(arrays: Sequence[Any]) -> list[Any]:
    """`arrays`, all cast to vary over the same mesh axes inside `shard_map`. None stays None.

    The operands of a primitive must. The transpose of this cast is the psum that the gradient of a replicated operand
    needs.
    """

    def varying(array: Any) -> frozenset[str]:
        return jax.typeof(array).manual_axis_type.varying

    union = frozenset[str]().union(*(varying(array) for array in arrays if array is not None))

    def cast(array: Any) -> Any:
        missing = tuple(sorted(union - varying(array)))
        return lax.pcast(array, missing, to="varying") if missing else array

    return [None if array is None else cast(array) for array in arrays]


def _is_explicit(aval: jax.core.ShapedArray) -> bool:
    return AxisType.Explicit in aval.sharding.mesh.axis_types


def no_mesh() -> Any:
    """A context in which arrays are as on one device, whatever the current mesh."""
    return use_abstract_mesh(AbstractMesh((), ()))


def lower_without_explicit_mesh(lower: Callable[..., Any], ctx: Any, *args: Any, **params: Any) -> Any:
    """Calls a lowering rule. Under an Explicit mesh the rule runs as on one device, and XLA's partitioner shards.

    Otherwise each reshape and each slice of a sharded dimension would have to specify how its result is sharded.
    """
    if not any(_is_explicit(aval) for aval in ctx.avals_in):
        return lower(ctx, *args, **params)
    with no_mesh():
        avals = [jax.core.ShapedArray(aval.shape, aval.dtype) for aval in ctx.avals_in]
        return lower(dataclasses.replace(ctx, avals_in=avals), *args, **params)


def lowering_device(ctx: Any) -> Any:
    """One of the devices that a computation is lowered for, or None if they are not known."""
    match ctx.module_context.axis_context:
        case object(mesh=Mesh(devices=devices)):
            return devices.flat[0]
        case object(device_assignment=[device, *_]):
            return device
    return None


def require_devices_during_lowering(primitive: Any) -> None:
    """Has jax pass the devices to the lowering rule of `primitive`, because `custom_partitioning` needs them.

    Such a primitive cannot be lowered for an AbstractMesh. There is no public way.
    """
    prim_requires_devices_during_lowering.add(primitive)


def all_axes_are_manual() -> bool:
    """Whether `shard_map` has sharded arrays over all axes of the mesh, so that nothing is left to the partitioner."""
    axis_types = jax.sharding.get_abstract_mesh().axis_types
    return bool(axis_types) and all(axis_type == AxisType.Manual for axis_type in axis_types)


def annotate(results: Sequence[Any], text: str) -> None:
    """Records in a call that is to be partitioned what it computes, and with which version of this package.

    Nothing else in the call does. Under `jax_remove_custom_partitioning_ptr_from_cache_key` the persistent compilation
    cache would confuse calls of the same shapes, and one program would get the executable of another.
    """
    annotation = ir.StringAttr.get(f"{version(PACKAGE)} {text}")
    results[0].owner.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get({PACKAGE: annotation})
