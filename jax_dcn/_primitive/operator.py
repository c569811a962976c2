"""Makes an operator a JAX primitive, with a rule for every transformation, from one reference and its kernels.

The primitive stands for the operator and all its derivatives. Which of them is said by a chain of steps:

    ()             operands → result                                 kernel
    jvp            operands, tangents → tangent of the result        reference
    vjp            operands, cotangent → cotangents of operands      kernel
    vjp, jvp …     and so on: the step of a function's arguments     reference

So the value and the first reverse derivative run in kernels, and every other derivative comes out of the reference. On
a platform without kernels the reference is all there is. Every argument and result of a chain plays a role: that of an
operand, whose shape it has, or that of the result. By its role it is batched, typed and split over devices.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from jax_dcn._primitive import extension, jax_internals, partition

RESULT = -1  # the role of what is not an operand


class Step(NamedTuple):
    """The derivative of a function in some of its arguments, by their numbers.

    "jvp" takes their tangents behind the arguments, and gives the results' tangents; "vjp" takes the results'
    cotangents, and gives theirs.
    """

    mode: str
    arguments: tuple[int, ...]


class Axes(NamedTuple):
    """How an operator may be split over devices.

    operands, result: names for the dimensions of each operand and of the result, batch dimensions apart, as
      `_partition` has them. sizes: into how many equal parts a name may be split at most.
    """

    operands: tuple[partition.Names, ...]
    result: partition.Names
    sizes: dict[str, int]


@dataclass(eq=False)
class Operator:
    """An operator, called with its operands. Those that it may do without are None, in the functions below too.

    Args:
      name: of the operator and its primitive.
      operands: how many there are.
      result: `result(*operands, spec)`, from shapes and types to those of the result; raises where they do not fit.
      reference: `reference(*operands, **keywords)`, the operator in `jax.numpy`: its meaning, and its derivatives.
      forward: `forward(*operands, platform, **keywords)`, as `reference`, by the kernels of the platform.
      cotangent: `cotangent(*operands, ct, wanted, summed, platform, **keywords)`, the cotangents of the operands
        numbered in `wanted`, by the kernels; in the operands' types or, better for those in `summed`, which are parts
        of sums over devices, in the type that sums are taken in.
      axes: `axes(*operands, spec)`, how shapes may be split over devices.
      keywords: `keywords(spec, parts)`, those of the functions above, where a device has these `partition.Part`s.
      shared: the operands that the examples of a batch share, as weights, and how many dimensions they have. Where they
        are batched, it is by the first batch dimensions of the others, and all of them are.
      linear: the operands that the result is linear in, each by itself.
    """

    name: str
    operands: int
    result: Callable
    reference: Callable
    forward: Callable
    cotangent: Callable
    axes: Callable
    keywords: Callable
    shared: Mapping[int, int]
    linear: tuple[int, ...]

    def __post_init__(self):
        # jax has to know the devices of what it is to partition; what `shard_map` has split may have none yet.
        self._partitioned, self._manual = self._primitive(), self._primitive()
        jax_internals.tell_devices_when_lowered(self._partitioned)

    def _primitive(self):
        primitive = Primitive(self.name)
        primitive.multiple_results = True
        primitive.def_impl(partial(xla.apply_primitive, primitive))
        primitive.def_abstract_eval(self._types)
        ad.primitive_jvps[primitive] = self._jvp
        ad.primitive_transposes[primitive] = self._transpose
        batching.primitive_batchers[primitive] = self._batch
        for platform in (None, *extension.PLATFORMS):
            rule = partial(jax_internals.lower_apart_from_explicit_mesh, partial(self._lower, platform))
            mlir.register_lowering(primitive, rule, platform=platform)
        return primitive

    def _bind(self, *arrays, **params):
        primitive = self._manual if jax_internals.all_axes_are_manual() else self._partitioned
        return primitive.bind(*arrays, **params)

    def __call__(self, *operands, spec, backend=None):
        given, arrays = _split(operands)
        (result,) = self._bind(*arrays, given=given, chain=(), spec=spec, backend=backend)
        return result

    def cotangents(self, *operands, cotangent, wanted: tuple[int, ...], spec, backend=None) -> list:
        """The cotangents of the operands numbered in `wanted`."""
        given, arrays = _split(operands)
        chain = (Step("vjp", tuple(map(given.index, wanted))),)
        return self._bind(*arrays, cotangent, given=given, chain=chain, spec=spec, backend=backend)

    def _types(self, *avals, given, chain, spec, backend):
        arguments, results, sizes = self._arrays(avals, given, chain, spec)
        like = next((aval for aval in avals if not aval.sharding.mesh.empty), avals[0])
        specs = [aval.sharding.spec for aval in avals]
        split = partition.assign([array.names for array in arguments], specs, sizes, like.sharding.mesh)

        def type_of(role, array):
            if role != RESULT:
                return avals[given.index(role)].update(weak_type=False)
            return jax_internals.result_aval(like, array.shape, array.dtype, partition.spec_of(array.names, split))

        return list(map(type_of, _roles(given, chain)[1], results))

    def _arrays(self, avals, given, chain, spec):
        """Arguments and results as `_partition` has them, and into how many parts their names may be split."""
        batch = avals[0].shape[: self._shared_batch(avals, given)]
        shapes = [jax.ShapeDtypeStruct(aval.shape[len(batch) :], aval.dtype) for aval in avals[: len(given)]]
        operands = self._filled(given, shapes)
        axes, result = self.axes(*operands, spec=spec), self.result(*operands, spec=spec)

        def array(names, like):
            first = tuple(f"batch{k}" for k in range(len(batch) + len(like.shape) - len(names)))
            return partition.Array((*first, *names), (*batch, *like.shape), like.dtype)

        arrays = {k: array(axes.operands[k], operands[k]) for k in given} | {RESULT: array(axes.result, result)}
        batch_names = arrays[RESULT].names[: -len(axes.result)]
        sizes = axes.sizes | dict(zip(batch_names, arrays[RESULT].shape, strict=False))
        return *([arrays[role] for role in roles] for roles in _roles(given, chain)), sizes

    def _shared_batch(self, arrays, given) -> int:
        """How many batch dimensions the shared operands have."""
        ranks = (array.ndim - self.shared[k] for k, array in zip(given, arrays, strict=False) if k in self.shared)
        return next(ranks, 0)

    def _filled(self, given, arrays):
        return _replaced([None] * self.operands, given, arrays)

    def _lower(self, platform, ctx, *args, given, chain, spec, backend):
        by_kernel = platform is not None and backend is None and _has_kernel(chain)
        if by_kernel:
            extension.require(platform)

        def call(*args, parts, summed):
            keywords = self.keywords(spec, parts)
            if by_kernel:
                keywords |= {"chain": chain, "summed": summed, "platform": platform}
                function = partial(self._by_kernel, given=given, **keywords)
            else:
                # What is summed over devices is rounded behind that alone.
                widen = partition.widened if any(summed) else lambda array: array
                args = tuple(map(widen, args))
                function = partial(self._by_reference, given=given, widen=widen, **keywords)
                function = _derivative(function, given, chain)
            return _of_each(function, self._shared_batch(args, given))(*args)

        arguments, results, sizes = self._arrays(ctx.avals_in, given, chain, spec)
        meshes = jax_internals.meshes_to_partition(ctx)
        if meshes is None:
            return mlir.lower_fun(partition.whole(call, results), multiple_results=True)(ctx, *args)
        function = partition.partitioned(call, arguments, results, sizes, meshes)
        lowered = mlir.lower_fun(function, multiple_results=True)(ctx, *args)
        jax_internals.annotate(lowered, f"{self.name} {chain} {given} {spec} {platform} {backend}")
        return lowered

    def _by_kernel(self, *args, given, chain, summed, **keywords):
        if not chain:
            return (self.forward(*self._filled(given, args), **keywords),)
        *arrays, ct = args
        wanted = tuple(given[k] for k in chain[0].arguments)
        summed = tuple(k for k, is_summed in zip(wanted, summed, strict=True) if is_summed)
        return self.cotangent(*self._filled(given, arrays), ct, wanted=wanted, summed=summed, **keywords)

    def _by_reference(self, *arrays, given, widen, **keywords):
        return (widen(self.reference(*self._filled(given, arrays), **keywords)),)

    def _jvp(self, arrays, tangents, *, chain, **params):
        moving = tuple(k for k, tangent in enumerate(tangents) if type(tangent) is not ad.Zero)
        moved = [tangents[k] for k in moving]
        return (
            self._bind(*arrays, chain=chain, **params),
            self._bind(*arrays, *moved, chain=(*chain, Step("jvp", moving)), **params),
        )

    def _transpose(self, cts, *args, given, chain, **params):
        asked = [k for k, arg in enumerate(args) if ad.is_undefined_primal(arg)]
        bind = partial(self._bind, given=given, **params)
        earlier, last = chain[:-1], chain[-1:]
        count = len(_roles(given, earlier)[0])
        if all(type(ct) is ad.Zero for ct in cts):
            answers = [ad.Zero(args[k].aval) for k in asked]
        elif not chain and len(asked) == 1 and given[asked[0]] in self.linear:
            # The cotangent of what the result is linear in does not depend on its value.
            known = [ad.instantiate_zeros(ad.Zero(a.aval)) if k in asked else a for k, a in enumerate(args)]
            answers = bind(*known, *cts, chain=(Step("vjp", tuple(asked)),))
        elif not chain or asked[0] < count:
            kind = "a derivative of " if chain else ""
            roles = [_roles(given, chain)[0][k] for k in asked]
            raise NotImplementedError(f"{kind}{self.name} is not known to be linear in its operands {roles}")
        elif last[0].mode == "jvp":
            # Other tangents may be known here (a zero that scan made concrete): they get None.
            wanted = tuple(last[0].arguments[k - count] for k in asked)
            answers = bind(*args[:count], *map(ad.instantiate_zeros, cts), chain=(*earlier, Step("vjp", wanted)))
        else:
            live = [k for k, ct in enumerate(cts) if type(ct) is not ad.Zero]
            moving = tuple(last[0].arguments[k] for k in live)
            moved = bind(*args[:count], *(cts[k] for k in live), chain=(*earlier, Step("jvp", moving)))
            answers = [moved[k - count] for k in asked]
        return _replaced([None] * len(args), asked, answers)

    def _batch(self, arrays, dims, *, given, chain, **params):
        """Batches by one more leading dimension, of shared operands too if one is batched or has cotangents to give."""
        roles, results = _roles(given, chain)
        shared = [role in self.shared for role in roles]
        mapped = any(dim is not None for dim, is_shared in zip(dims, shared, strict=True) if is_shared)
        each = mapped or self._shared_batch(arrays, given) > 0 or any(role in self.shared for role in results)
        moved = [k for k, is_shared in enumerate(shared) if each or not is_shared]
        leading = jax_internals.lead([arrays[k] for k in moved], [dims[k] for k in moved])
        out = self._bind(*_replaced(arrays, moved, leading), given=given, chain=chain, **params)
        return out, [0] * len(out)


def _split(operands):
    given = tuple(k for k, operand in enumerate(operands) if operand is not None)
    return given, [operands[k] for k in given]


def _replaced(items, numbers, others) -> list:
    """`items` with `others` in the places of those numbers."""
    full = list(items)
    for k, other in zip(numbers, others, strict=True):
        full[k] = other
    return full


def _has_kernel(chain) -> bool:
    return not chain or (len(chain) == 1 and chain[0].mode == "vjp")


def _roles(given, chain) -> tuple[list[int], list[int]]:
    """The roles of a chain's arguments and of its results."""
    arguments, results = list(given), [RESULT]
    for mode, numbers in chain:
        moved = [arguments[k] for k in numbers]
        if mode == "jvp":
            arguments = arguments + moved
        else:
            arguments, results = arguments + results, moved
    return arguments, results


def _derivative(function, given, chain):
    """What a chain makes of a function of arrays, which gives a tuple."""
    if not chain:
        return function
    *earlier, (mode, numbers) = chain
    inner = _derivative(function, given, earlier)
    count = len(_roles(given, earlier)[0])

    def derivative(*args):
        arrays, directions = args[:count], args[count:]

        def of_moving(*moved):
            return inner(*_replaced(arrays, numbers, moved))

        primals = tuple(arrays[k] for k in numbers)
        if mode == "jvp":
            return jax.jvp(of_moving, primals, directions)[1]
        return jax.vjp(of_moving, *primals)[1](directions)

    return derivative


def _of_each(function, dimensions):
    """`function` of each example in so many leading dimensions, one by one."""
    for _ in range(dimensions):
        function = partial(_map, function)
    return function


def _map(function, *arrays):
    return jax.lax.map(lambda args: function(*args), arrays)
