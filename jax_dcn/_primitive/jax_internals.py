"""Everything that depends on how jax works inside, each with its reason.

jax documents `jax`, `jax.numpy`, `jax.lax`, `jax.sharding`, `jax.ffi`, `jax.export`, `jax.dtypes`, `jax.tree_util` and
a few names of `jax.core`. It may move any other name without notice. This module looks the others up with
`OptionalNames`, `attribute` and `config`, and without them the package does the following:

    PRIMITIVES     every call computes the reference, with a warning, and arrays of an Explicit mesh are an error
    PARTITIONING   jit over several devices gathers the operands on each of them, with a warning
    REPLACEABLE    nothing changes, because this module has a replacement for each
    ATTRIBUTES     as PARTITIONING, except for the axes of `shard_map`, which have a replacement
    OPTIONS        as if the user had not set the option

The group of a new name follows from what works without it. It belongs to REPLACEABLE if this module can do the same
without the name, to PARTITIONING if only a computation over several devices needs it, and to PRIMITIVES otherwise.
ATTRIBUTES are attributes of objects that jax passes to rules, and OPTIONS are options of `jax.config`. If a release of
jax moves a name, its entry becomes a tuple of the new and the old path, as `OptionalNames` shows.

`tests/test_future_jax.py` removes each of these names in turn. All of this module was tested with `TESTED_VERSIONS`.

The package assumes the following without a guard, and fails if a release of jax changes it: `sharding` of an aval, with
`mesh` and `spec`; `ShapedArray.update`; a lowering rule's context is a dataclass with the field `avals_in`; the methods
`bind`, `def_impl` and `def_abstract_eval` and the attribute `multiple_results` of a `Primitive`; the signatures of
rules and of all names that are found; `platform_version` of a device's `client`.
"""

import dataclasses
import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, use_abstract_mesh

PACKAGE = __name__.partition(".")[0]
TESTED_VERSIONS = "0.10.2, 0.11.2 and 0.12.0.1"
_INTERNAL = (PACKAGE, "jax", "jaxlib", "flax", "contextlib", "functools")  # modules that a warning does not point to


class OptionalNames(SimpleNamespace):
    """Objects of jax by the last part of their paths. Those that this jax does not have are None, and in `missing`.

    An entry is a path or, for a name that jax has moved, a tuple of paths. The first path that exists gives the object,
    and the last part of the first path is its name. For example, `names.Zero` is the same object in releases of jax
    before and after a move:

        names = OptionalNames(("jax.extend.ad.Zero", "jax.interpreters.ad.Zero"))

    Attributes:
      entries: the entries as text: a path, or the paths of a tuple with " or " between them.
      missing: the entries of which no path exists.
    """

    entries: tuple[str, ...]
    missing: tuple[str, ...]

    def __init__(self, *entries: str | tuple[str, ...]) -> None:
        paths = [(entry,) if isinstance(entry, str) else entry for entry in entries]
        found = [next((value for path in entry if (value := _find(path)) is not None), None) for entry in paths]
        super().__init__(**{entry[0].rpartition(".")[2]: value for entry, value in zip(paths, found, strict=True)})
        self.entries = tuple(map(" or ".join, paths))
        self.missing = tuple(entry for entry, value in zip(self.entries, found, strict=True) if value is None)


def _find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        owner = import_module(module)
        return getattr(owner, name) if hasattr(owner, name) else import_module(path)
    except ImportError:
        return None


PRIMITIVES = OptionalNames(
    "jax.extend.core.Primitive",
    "jax.interpreters.ad.Zero",
    "jax.interpreters.ad.is_undefined_primal",
    "jax.interpreters.ad.primitive_jvps",
    "jax.interpreters.ad.primitive_transposes",
    "jax.interpreters.batching.primitive_batchers",
    "jax.interpreters.mlir.lower_fun",
    "jax.interpreters.mlir.register_lowering",
)
PARTITIONING = OptionalNames(
    "jax._src.dispatch.prim_requires_devices_during_lowering",
    "jax._src.sharding_impls.parse_flatten_op_sharding",
    "jax.experimental.custom_partitioning.ArrayMapping",
    "jax.experimental.custom_partitioning.CompoundFactor",
    "jax.experimental.custom_partitioning.SdyShardingRule",
    "jax.experimental.custom_partitioning.custom_partitioning",
)
REPLACEABLE = OptionalNames(
    "jax._src.xla_bridge.backends_are_initialized",
    "jax.extend.mlir.ir",
    "jax.interpreters.ad.instantiate_zeros",
    "jax.interpreters.xla.apply_primitive",
)
AXIS_CONTEXT = "module_context.axis_context"  # of a lowering rule's context: the devices
HLO_SHARDING = "sharding._hlo_sharding"  # of an array that `custom_partitioning` describes
VARYING_AXES = "manual_axis_type.varying"  # of an aval: the mesh axes of `shard_map` over which it varies
ATTRIBUTES = (AXIS_CONTEXT, HLO_SHARDING, VARYING_AXES)
DEFAULT_DEVICE = "jax_default_device"
DEFAULT_PRECISION = "jax_default_matmul_precision"
CACHE_KEY_WITHOUT_PARTITIONING = "jax_remove_custom_partitioning_ptr_from_cache_key"
USE_SHARDY = "jax_use_shardy_partitioner"
OPTIONS = (DEFAULT_DEVICE, DEFAULT_PRECISION, CACHE_KEY_WITHOUT_PARTITIONING, USE_SHARDY)


def attribute(owner: object, path: str) -> Any:
    """The attribute of `owner` at a path of `ATTRIBUTES`, or None if this jax has none there."""
    return functools.reduce(lambda value, name: getattr(value, name, None), path.split("."), owner)


def config(option: str) -> Any:
    """The value of one of `OPTIONS`, or None if this jax does not have the option."""
    return getattr(jax.config, option, None)


def _missing(entries: Iterable[str], consequence: str) -> str:
    return (
        f"jax {jax.__version__} has no {', '.join(entries)}, so {consequence}. "
        f"{PACKAGE} was tested with jax {TESTED_VERSIONS}"
    )


def _warn(message: str) -> None:
    """Warns at the user's line: the line of the innermost frame outside of `_INTERNAL`.

    XLA's partitioner calls from a thread without such a frame, so the warning has a line of this module there.
    """
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INTERNAL:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=1 if frame is None else level)


def fall_back_to_reference(operator: str, avals: Sequence[jax.core.ShapedArray]) -> None:
    """Warns that an operator runs its reference, or raises an error for arrays that only a lowering rule can take."""
    if any(_is_explicit(aval) for aval in avals):
        consequence = f"{operator} cannot take arrays that are sharded over an Explicit mesh. Use an Auto mesh instead"
        raise NotImplementedError(_missing(PRIMITIVES.missing, consequence))
    _warn(_missing(PRIMITIVES.missing, f"{operator} runs the slow jax.numpy form"))


def _warn_of_gathering(entries: Iterable[str]) -> None:
    consequence = (
        f"{PACKAGE} cannot be partitioned: under jit over several devices each device gathers the operands and "
        "computes the whole result. Use jax.shard_map instead"
    )
    _warn(_missing(entries, consequence))


def _warn_of_possible_gathering() -> None:
    """For a computation whose number of devices is unknown. On one device nothing is gathered."""
    consequence = (
        f"{PACKAGE} cannot be partitioned: if this computation runs on several devices, the operands may be gathered "
        "on each of them. Use jax.shard_map for several devices"
    )
    _warn(_missing([AXIS_CONTEXT], consequence))


def _is_explicit(aval: jax.core.ShapedArray) -> bool:
    return AxisType.Explicit in aval.sharding.mesh.axis_types


def apply_primitive(primitive: Any, *args: Any, **params: Any) -> Any:
    """Compiles and runs a primitive outside of `jit`."""
    if REPLACEABLE.apply_primitive is not None:
        return REPLACEABLE.apply_primitive(primitive, *args, **params)
    with jax.disable_jit(False):
        return _compiled(primitive, **params)(*args)


@functools.cache
def _compiled(primitive: Any, **params: Any) -> Callable[..., Any]:
    return jax.jit(functools.partial(primitive.bind, **params))


def instantiate_zeros(tangent: Any) -> Any:
    """An array of zeros for a symbolic zero. Other tangents stay as they are."""
    if REPLACEABLE.instantiate_zeros is not None:
        return REPLACEABLE.instantiate_zeros(tangent)
    if type(tangent) is not PRIMITIVES.Zero:
        return tangent
    zeros = jnp.zeros(tangent.aval.shape, tangent.aval.dtype)
    varying = tuple(sorted(attribute(tangent.aval, VARYING_AXES) or ()))
    return lax.pcast(zeros, varying, to="varying") if varying else zeros


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
    aval: jax.core.ShapedArray = like.update(**changes)
    return aval


def reshape(array: jax.Array, shape: Sequence[int]) -> jax.Array:
    """`array.reshape(shape)`, in which dimensions between equal first and equal last ones are merged, or one is split.

    Under an Explicit mesh jax refuses some shardings of these dimensions. Here the result is sharded along the first of
    them if only that is sharded, into equal shards; otherwise they are gathered.
    """
    old, new = array.shape, tuple(shape)
    if not _is_explicit(jax.typeof(array)):
        return array.reshape(new)
    first = next((k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    rest = zip(old[first:][::-1], new[first:][::-1], strict=False)
    last = next((k for k, (a, b) in enumerate(rest) if a != b), min(len(old), len(new)) - first)
    sharding = jax.typeof(array).sharding
    entries = (*sharding.spec, *[None] * (len(old) - len(sharding.spec)))
    changed, entry = entries[first : len(old) - last], None
    if any(changed[:1]) and not any(changed[1:]) and first < len(new) - last:
        axes = changed[0] if isinstance(changed[0], tuple) else changed[:1]
        entry = None if new[first] % math.prod(sharding.mesh.shape[axis] for axis in axes) else changed[0]
    middle = [entry, *[None] * (len(new) - last - first - 1)][: len(new) - last - first]
    spec = PartitionSpec(*entries[:first], *middle, *entries[len(old) - last :])
    return lax.reshape(array, new, out_sharding=NamedSharding(sharding.mesh, spec))


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
    match attribute(ctx, AXIS_CONTEXT):
        case object(mesh=Mesh(devices=devices)):
            return devices.flat[0]
        case object(device_assignment=[device, *_]):
            return device
    return None


def are_backends_initialized() -> bool:
    initialized = REPLACEABLE.backends_are_initialized
    return initialized is not None and initialized()


class Meshes(NamedTuple):
    """The meshes of a computation that is partitioned: all devices, and the devices that shard an array.

    They differ only inside a `shard_map` over some of the mesh axes. There the devices that agree on these axes shard
    an array, over the other axes.
    """

    all_devices: Mesh
    auto_axes: Mesh


def meshes_to_partition(ctx: Any) -> Meshes | None:
    """The meshes over which XLA's partitioner will shard what is lowered in this context.

    None on one device, where `shard_map` has sharded arrays over all mesh axes, and where a name that partitioning
    needs is missing. Also None for the partitioner before Shardy, which jax still has for a while: it gathers the
    operands of custom calls.
    """
    if config(USE_SHARDY) is False:
        return None
    devices: Any
    manual: frozenset[str] = frozenset()
    match attribute(ctx, AXIS_CONTEXT):
        case object(mesh=mesh, manual_axes=manual):
            devices = mesh.devices if isinstance(mesh, Mesh) else None
        case object(device_assignment=devices, abstract_mesh=AbstractMesh() as mesh):
            pass
        case object(num_devices=int() as count, abstract_mesh=None):
            if PARTITIONING.missing and count > 1:
                _warn_of_gathering(PARTITIONING.missing)
            return None
        case _:
            if jax.device_count() > 1:
                _warn_of_possible_gathering()
            return None
    axes = [axis for pair in mesh.shape.items() for axis in _primes(*pair)]
    free = [name for axis, name, _ in axes if axis not in manual]
    if not free:
        return None
    if PARTITIONING.missing or devices is None:
        _warn_of_gathering(PARTITIONING.missing or ["devices of the mesh"])
        return None
    all_devices = Mesh(np.reshape(devices, [length for *_, length in axes]), [name for _, name, _ in axes])
    first = tuple(0 if axis in manual else slice(None) for axis, *_ in axes)
    return Meshes(all_devices, Mesh(all_devices.devices[first], free))


def _primes(axis: str, length: int) -> Iterator[tuple[str, str, int]]:
    """A mesh axis as several axes of prime lengths, because Shardy may shard a dimension over a part of an axis."""
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
    sharding = attribute(array, HLO_SHARDING)
    if sharding is None:
        _warn_of_gathering([HLO_SHARDING])
        return PartitionSpec()
    try:
        spec: PartitionSpec = PARTITIONING.parse_flatten_op_sharding(sharding, mesh)[0]
        return spec
    except (AssertionError, NotImplementedError, StopIteration, ValueError):  # depending on why it cannot
        return PartitionSpec()


def require_devices_during_lowering(primitive: Any) -> None:
    """Has jax pass the devices to the lowering rule of `primitive`, because `custom_partitioning` needs them.

    Such a primitive cannot be lowered for an AbstractMesh. There is no public way.
    """
    if PARTITIONING.prim_requires_devices_during_lowering is not None:
        PARTITIONING.prim_requires_devices_during_lowering.add(primitive)


def all_axes_are_manual() -> bool:
    """Whether `shard_map` has sharded arrays over all axes of the mesh, so that nothing is left to the partitioner."""
    axis_types = jax.sharding.get_abstract_mesh().axis_types
    return bool(axis_types) and all(axis_type == AxisType.Manual for axis_type in axis_types)


def vary_alike(arrays: Sequence[Any]) -> list[Any]:
    """`arrays`, all cast to vary over the same mesh axes inside `shard_map`. None stays None.

    The operands of a primitive must. The transpose of this cast is the psum that the gradient of a replicated operand
    needs.
    """
    varying = [attribute(jax.typeof(array), VARYING_AXES) for array in arrays if array is not None]
    if None in varying:
        return _vary_by_arithmetic(arrays)
    union = frozenset[str]().union(*varying)

    def cast(array: Any) -> Any:
        missing = tuple(sorted(union - attribute(jax.typeof(array), VARYING_AXES)))
        return lax.pcast(array, missing, to="varying") if missing else array

    return [None if array is None else cast(array) for array in arrays]


def _vary_by_arithmetic(arrays: Sequence[Any]) -> list[Any]:
    """Leaves the casts to `jnp.subtract`, which casts its operands alike. A sum of no elements varies as its array."""
    if AxisType.Manual not in jax.sharding.get_abstract_mesh().axis_types:
        return list(arrays)
    sums = [jnp.sum(array.reshape(-1)[:0]) for array in arrays if array is not None]
    zero = functools.reduce(jnp.add, sums)
    return [None if array is None else array - zero.astype(array.dtype) for array in arrays]


def annotate(results: Sequence[Any], text: str) -> None:
    """Records in a call that is to be partitioned what it computes, and with which version of this package.

    Nothing else in the call does. Under `jax_remove_custom_partitioning_ptr_from_cache_key` the persistent compilation
    cache would confuse calls of the same shapes, and one program would get the executable of another.
    """
    ir = REPLACEABLE.ir
    if ir is None:
        if config(CACHE_KEY_WITHOUT_PARTITIONING):
            consequence = (
                "programs of the same shapes would be confused in the compilation cache. Set "
                "jax_remove_custom_partitioning_ptr_from_cache_key to False"
            )
            raise RuntimeError(_missing(["jax.extend.mlir.ir"], consequence))
        return
    annotation = ir.StringAttr.get(f"{version(PACKAGE)} {text}")
    results[0].owner.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get({PACKAGE: annotation})


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
