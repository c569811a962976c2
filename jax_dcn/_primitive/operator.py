"""Makes an operator a JAX primitive, with a rule for every transformation, from its reference and its kernels.

One primitive represents the operator and all its derivatives. A chain of differentiation steps, one of the primitive's
static parameters, says which of them:

    ()             operands → result                                 kernel
    jvp            operands, tangents → tangent of the result        kernel, if the operator has one
    vjp            operands, cotangent → cotangents of operands      kernel
    vjp, jvp …     each further step differentiates the function     reference, in chunks
                   that the steps before it make

The value and the first derivatives run in kernels. Every other derivative is derived from the reference, and evaluated
in chunks of the operands so that its workspace does not grow with the batch. On a platform without kernels, and where
the user asks for it, the whole reference computes everything. Each argument and each result of a chain has a name and a
role. The role is the name of the operand whose shape it has, or `RESULT` if it has the shape of the result, and it
determines how the array is batched, typed, cut into chunks and sharded.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jax

from jax_dcn._primitive import chunks, extension, jax_internals, partition, target
from jax_dcn._primitive.jax_internals import PRIMITIVES
from jax_dcn._primitive.plan import ComputationPlan
from jax_dcn._primitive.promotion import by_standard_rules, sum_dtype
from jax_dcn._primitive.target import Target

RESULT = "result"

Arrays = dict[str, jax.Array]
Roles = dict[str, str]  # roles by the names of arrays
Backend = str | None  # "reference", or what the kernels of an operator understand
Spec = TypeVar("Spec")


class Step(NamedTuple):
    """Differentiates a function with respect to some of its arguments, which it names.

    "jvp" appends their tangents to the arguments, and its results are the tangents of the function's results. "vjp"
    appends the cotangents of the function's results to the arguments, and its results are the cotangents of the named
    arguments.
    """

    mode: Literal["jvp", "vjp"]
    arguments: tuple[str, ...]


Chain = tuple[Step, ...]


class Request(NamedTuple):
    """What is to be planned: the forward, if there is no step, or the derivatives of a step, for one device.

    The cotangents in `all_reduced` are summed over devices, and rounded after that. They should have a wider dtype.
    """

    step: Step | None
    spec: Any
    target: Target
    all_reduced: tuple[str, ...] = ()


class Axes(NamedTuple):
    """Which dimensions of an operator's arrays may be sharded.

    operands, result: the names of the dimensions of each operand and of the result, without batch dimensions, as
      `partition` defines them. sizes: the largest number of equal shards that each name allows.
    """

    operands: Mapping[str, partition.Names]
    result: partition.Names
    sizes: dict[str, int]


def why_reference(platform: str, backend: Backend) -> str:
    """Why the reference computes what the kernels of a platform could, as a sentence; empty where the kernels do."""
    if PRIMITIVES.missing:
        return f"jax {jax.__version__} has no {', '.join(PRIMITIVES.missing)}"
    if backend == "reference":
        return f"backend={backend!r} was passed"
    return "" if platform in extension.PLATFORMS else f"jax_dcn has no kernels for {platform}"


@dataclass(eq=False)
class Operator(Generic[Spec]):
    """An operator, called with its operands.

    The functions below take the operands as a named tuple, in which an absent operand is None.

    Args:
      name: the name of the operator and of its primitive.
      operands: the type of this named tuple, in the order in which the primitive takes operands.
      result: `result(operands, spec)` maps shapes and dtypes of the operands to those of the result. It raises an error
        if they do not fit together.
      reference: `reference(operands, **keywords)`, the operator in `jax.numpy`, which defines it and its derivatives.
      plan: `plan(request, operands)`, from shapes, decides how the computations of a `Request` are done, once, before
        anything is computed. It returns a `ComputationPlan` for each, by name. Costs are added to it by `flops`.
      forward: `forward(plans, operands, **keywords)` computes the same as the reference, as planned.
      tangent: `tangent(plans, operands, tangents, **keywords)` computes the tangent of the result from those of some
        operands, by name, as planned. None if there is no kernel.
      cotangent: `cotangent(plans, operands, ct, **keywords)` computes the planned cotangents, and returns them by name.
        They have the dtypes of the operands or the wider dtype in which sums are taken.
      flops: `flops(computation, operands, spec)`, from shapes, the floating-point operations of a computation.
      samples: `samples(operands, spec)`, from shapes, the bytes of the reference's samples, its least workspace.
      words: `words(spec)`, what users call operands, where that is not their name.
      axes: `axes(operands, spec)`, from shapes, the dimensions that may be sharded.
      keywords: `keywords(spec, shards)`, the keywords of the three functions above on a device that has these shards.
      chunk_lengths: `chunk_lengths(operands, target)`, from shapes with one batch dimension, the lengths of the
        chunks in which derivatives of the reference are evaluated, by the names of `axes` and "batch". The reference of
        these chunks must add up to that of the whole.
      shared: the number of dimensions of each operand that all examples of a batch share, as they do weights. If these
        operands are batched, then all of them are, by the leading batch dimensions of the other operands.
      linear: the operands in each of which the result is linear.
    """

    name: str
    operands: Any
    result: Callable[..., jax.ShapeDtypeStruct]
    reference: Callable[..., jax.Array]
    plan: Callable[..., dict[str, ComputationPlan]]
    forward: Callable[..., jax.Array]
    tangent: Callable[..., jax.Array] | None
    cotangent: Callable[..., Arrays]
    flops: Callable[..., int]
    samples: Callable[..., int]
    axes: Callable[..., Axes]
    keywords: Callable[[Spec, Mapping[str, partition.Shard]], dict[str, Any]]
    chunk_lengths: Callable[..., Mapping[str, Any]]
    shared: Mapping[str, int]
    linear: tuple[str, ...]
    words: Callable[[Spec], Mapping[str, str]] = lambda spec: {}

    def __post_init__(self) -> None:
        if PRIMITIVES.missing:
            return
        # jax has to know the devices when it lowers a computation that is partitioned. Inside `shard_map` nothing is
        # left to partition, and the devices may be unknown.
        self._partitioned, self._manual = self._primitive(partitioned=True), self._primitive(partitioned=False)
        jax_internals.require_devices_during_lowering(self._partitioned)

    def _primitive(self, *, partitioned: bool) -> Any:
        primitive = PRIMITIVES.Primitive(self.name)
        primitive.multiple_results = True
        primitive.def_impl(partial(jax_internals.apply_primitive, primitive))
        primitive.def_abstract_eval(self._abstract_evaluation)
        PRIMITIVES.primitive_jvps[primitive] = self._jvp_rule
        PRIMITIVES.primitive_transposes[primitive] = self._transpose_rule
        PRIMITIVES.primitive_batchers[primitive] = self._batching_rule
        for platform in (None, *extension.PLATFORMS):
            rule = partial(
                jax_internals.lower_without_explicit_mesh, partial(self._lowering_rule, platform, partitioned)
            )
            PRIMITIVES.register_lowering(primitive, rule, platform=platform)
        return primitive

    def _bind(
        self, *arrays: Any, present: tuple[str, ...], chain: Chain, spec: Spec, backend: Backend
    ) -> list[jax.Array]:
        if (calls := _RECORDED_CALLS.get()) is not None:
            calls.append(Call(self, list(map(jax.typeof, arrays)), present, chain, spec, backend))
        if PRIMITIVES.missing:
            avals = list(map(jax.typeof, arrays))
            jax_internals.fall_back_to_reference(self.name, avals)
            _, results, _ = self._arrays(avals, present, chain, spec)
            function = self._function(None, present, chain, spec)
            return list(partition.unsharded(function, results)(*arrays))
        primitive = self._manual if jax_internals.all_axes_are_manual() else self._partitioned
        bound: list[jax.Array] = primitive.bind(*arrays, present=present, chain=chain, spec=spec, backend=backend)
        return bound

    def __call__(self, operands: Any, *, spec: Spec, backend: Backend = None) -> jax.Array:
        arrays = _present(operands)
        (result,) = self._bind(*arrays.values(), present=tuple(arrays), chain=(), spec=spec, backend=backend)
        return result

    def cotangents(
        self, operands: Any, *, cotangent: jax.Array, requested: tuple[str, ...], spec: Spec, backend: Backend = None
    ) -> Arrays:
        """The cotangents of the operands in `requested`, by name, from the cotangent of the result."""
        arrays, chain = _present(operands), (Step("vjp", requested),)
        bind = partial(self._bind, present=tuple(arrays), chain=chain, spec=spec, backend=backend)
        return dict(zip(requested, bind(*arrays.values(), cotangent), strict=True))

    def _with_absent(self, arrays: Mapping[str, Any]) -> Any:
        """The operands, those that are absent as None, without the other arguments of a chain."""
        return self.operands(*(arrays.get(name) for name in self.operands._fields))

    def _abstract_evaluation(
        self, *avals: jax.core.ShapedArray, present: tuple[str, ...], chain: Chain, spec: Spec, backend: Backend
    ) -> list[jax.core.ShapedArray]:
        arguments, results, sizes = self._arrays(avals, present, chain, spec)
        like = next((aval for aval in avals if not aval.sharding.mesh.empty), avals[0])
        specs = [aval.sharding.spec for aval in avals]
        split = partition.assign([array.names for array in arguments], specs, sizes, like.sharding.mesh)
        operands = dict(zip(present, avals, strict=False))

        def aval_of(role: str, array: partition.Array) -> jax.core.ShapedArray:
            if role != RESULT:
                aval: jax.core.ShapedArray = operands[role].update(weak_type=False)
                return aval
            return jax_internals.result_aval(like, array.shape, array.dtype, partition.spec_of(array.names, split))

        _, roles = _roles(present, chain)
        return list(map(aval_of, roles.values(), results))

    def _arrays(
        self, avals: Sequence[jax.core.ShapedArray], present: tuple[str, ...], chain: Chain, spec: Spec
    ) -> tuple[list[partition.Array], list[partition.Array], dict[str, int]]:
        """The arguments and the results as `partition` describes them, and the largest number of shards per name."""
        batch = avals[0].shape[: self._shared_batch(avals, present)]
        shapes = {
            name: jax.ShapeDtypeStruct(aval.shape[len(batch) :], aval.dtype)
            for name, aval in zip(present, avals, strict=False)
        }
        operands = self._with_absent(shapes)
        axes, result = self.axes(operands, spec=spec), self.result(operands, spec=spec)

        def array(names: partition.Names, like: jax.ShapeDtypeStruct) -> partition.Array:
            leading = tuple(f"batch{k}" for k in range(len(batch) + len(like.shape) - len(names)))
            return partition.Array((*leading, *names), (*batch, *like.shape), like.dtype)

        arrays = {name: array(axes.operands[name], shape) for name, shape in shapes.items()}
        arrays[RESULT] = array(axes.result, result)
        batch_names = arrays[RESULT].names[: -len(axes.result)]
        sizes = axes.sizes | {
            name: size for name, size in zip(batch_names, arrays[RESULT].shape, strict=False) if name is not None
        }
        arguments, results = ([arrays[role] for role in roles.values()] for roles in _roles(present, chain))
        return arguments, results, sizes

    def _shared_batch(self, arrays: Sequence[Any], present: tuple[str, ...]) -> int:
        """The number of batch dimensions of the shared operands."""
        operands = zip(present, arrays, strict=False)
        ranks = (array.ndim - self.shared[name] for name, array in operands if name in self.shared)
        return next(ranks, 0)

    def _lowering_rule(
        self,
        platform: str | None,
        partitioned: bool,
        ctx: Any,
        *args: Any,
        present: tuple[str, ...],
        chain: Chain,
        spec: Spec,
        backend: Backend,
    ) -> Any:
        kernels = None
        if platform is not None and not why_reference(platform, backend):
            if self._has_kernel(chain):
                extension.require(platform)
            kernels = target.of_lowering(platform, ctx)
        call = self._function(kernels, present, chain, spec)
        arguments, results, sizes = self._arrays(ctx.avals_in, present, chain, spec)
        meshes = jax_internals.meshes_to_partition(ctx) if partitioned else None
        if meshes is None:
            return PRIMITIVES.lower_fun(partition.unsharded(call, results), multiple_results=True)(ctx, *args)
        function = partition.partitioned(call, arguments, results, sizes, meshes)
        lowered = PRIMITIVES.lower_fun(function, multiple_results=True)(ctx, *args)
        jax_internals.annotate(lowered, f"{self.name} {chain} {present} {spec} {kernels or platform} {backend}")
        return lowered

    def _function(
        self, target: Target | None, present: tuple[str, ...], chain: Chain, spec: Spec
    ) -> partition.ShardedFunction:
        """The function that a chain makes: as a target with kernels computes it, or by the whole reference if None."""
        arguments, results = _roles(present, chain)

        @by_standard_rules
        def call(
            *args: jax.Array, shards: Mapping[str, partition.Shard], all_reduced: Sequence[bool]
        ) -> tuple[jax.Array, ...]:
            reduced = tuple(name for name, is_reduced in zip(results, all_reduced, strict=True) if is_reduced)
            function: Callable[[Arrays], Arrays]
            if target is None:
                # The terms of an all-reduce stay wide. Only the sum is rounded.
                widen = partition.widened if reduced else lambda array: array
                args = tuple(map(widen, args))
                function = _derivative(partial(self._by_reference, widen=widen, **self.keywords(spec, shards)), chain)
            else:
                evaluation = _Evaluation(present, chain, spec, shards, reduced, target)
                function = partial(self._by_kernel if self._has_kernel(chain) else self._by_chunks, evaluation)
            outs = _mapped(function, self._shared_batch(args, present))(dict(zip(arguments, args, strict=True)))
            return tuple(outs[name] for name in results)

        return call

    def _has_kernel(self, chain: Chain) -> bool:
        return not chain or (len(chain) == 1 and (chain[0].mode == "vjp" or self.tangent is not None))

    def _by_kernel(self, evaluation: "_Evaluation[Spec]", arrays: Arrays) -> Arrays:
        present, chain, spec, shards, all_reduced, target = evaluation
        argument_roles, result_roles = _roles(present, chain)
        names = self._dimensions(arrays, spec)
        flat = {name: self._flat(array, argument_roles[name], names) for name, array in arrays.items()}
        operands, keywords = self._with_absent(flat), self.keywords(spec, shards)
        step = chain[0] if chain else None
        plans = self.plan(Request(step, keywords["spec"], target, all_reduced), operands)
        if step is None:
            outs = {RESULT: self.forward(plans, operands, **keywords)}
        elif step.mode == "jvp" and self.tangent is not None:
            tangents = {name: flat[_tangent_name(name, 0)] for name in step.arguments}
            outs = {RESULT: self.tangent(plans, operands, tangents, **keywords)}
        else:
            outs = self.cotangent(plans, operands, flat[_cotangent_name(RESULT, 0)], **keywords)

        def unflat(out: jax.Array, role: str) -> jax.Array:
            if role != RESULT:
                return out.reshape(arrays[role].shape)
            like = next(name for name in present if name not in self.shared)
            batch = arrays[like].shape[: arrays[like].ndim - len(names(like)) + 1]
            return out.reshape(*batch, *out.shape[1:])

        return {name: unflat(outs[name], role) for name, role in result_roles.items()}

    def _dimensions(self, operands: Mapping[str, Any], spec: Spec) -> Callable[[str], partition.Names]:
        """The names of the dimensions of an array by its role, with all batch dimensions as one."""
        axes = self.axes(self._with_absent(operands), spec=spec)

        def names(role: str) -> partition.Names:
            of_example = axes.result if role == RESULT else axes.operands[role]
            return of_example if role in self.shared else ("batch", *of_example)

        return names

    def _flat(self, array: jax.Array, role: str, names: Callable[[str], partition.Names]) -> jax.Array:
        """The array with all batch dimensions as one, which shared operands lack."""
        return array if role in self.shared else chunks.flat(array, len(names(role)) - 1)

    def _by_chunks(self, evaluation: "_Evaluation[Spec]", arrays: Arrays) -> Arrays:
        """Derivatives of the reference, with the workspace of a chunk of the operands."""
        present, chain, spec, shards, all_reduced, target = evaluation
        argument_roles, result_roles = _roles(present, chain)
        names = self._dimensions(arrays, spec)
        flat = partial(self._flat, names=names)
        shapes = {role: jax.typeof(arrays[name]) for name, role in argument_roles.items()}
        if RESULT not in shapes:
            reference = partial(self.reference, **self.keywords(spec, shards))
            shapes[RESULT] = jax.eval_shape(reference, self._with_absent(arrays))

        def like(name: str, role: str) -> partition.Array:
            struct = jax.eval_shape(partial(flat, role=role), shapes[role])
            dtype = sum_dtype(struct.dtype) if name in all_reduced else struct.dtype
            return partition.Array(names(role), struct.shape, dtype)

        def of_chunk(arrays: Arrays, starts: chunks.Starts) -> Arrays:
            keywords = self.keywords(spec, _shards_of_chunk(shards, starts))
            reference = partial(self._by_reference, widen=partition.widened, **keywords)
            return _derivative(reference, chain)({name: partition.widened(array) for name, array in arrays.items()})

        flat_arrays = {name: flat(arrays[name], role) for name, role in argument_roles.items()}
        outs = chunks.evaluate(
            of_chunk,
            flat_arrays,
            arguments={name: names(role) for name, role in argument_roles.items()},
            results={name: like(name, role) for name, role in result_roles.items()},
            lengths=tuple(self.chunk_lengths(self._with_absent(flat_arrays), target=target).items()),
            fill=len(chain),
        )
        return {name: outs[name].reshape(shapes[role].shape) for name, role in result_roles.items()}

    def _by_reference(self, arrays: Arrays, *, widen: Callable[[jax.Array], jax.Array], **keywords: Any) -> Arrays:
        return {RESULT: widen(self.reference(self._with_absent(arrays), **keywords))}

    def _jvp_rule(
        self, primals: Sequence[Any], tangents: Sequence[Any], *, present: tuple[str, ...], chain: Chain, **params: Any
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        named = zip(_roles(present, chain)[0], tangents, strict=True)
        active = {name: tangent for name, tangent in named if type(tangent) is not PRIMITIVES.Zero}
        bind = partial(self._bind, *primals, present=present, **params)
        return bind(chain=chain), bind(*active.values(), chain=(*chain, Step("jvp", tuple(active))))

    def _transpose_rule(
        self, cts: Sequence[Any], *args: Any, present: tuple[str, ...], chain: Chain, **params: Any
    ) -> list[Any]:
        """The cotangents of the undefined arguments, in which the chain has to be linear, and None for the others."""
        roles, _ = _roles(present, chain)
        arguments = dict(zip(roles, args, strict=True))
        undefined = tuple(name for name, arg in arguments.items() if PRIMITIVES.is_undefined_primal(arg))
        bind = partial(self._bind, present=present, **params)
        if all(type(ct) is PRIMITIVES.Zero for ct in cts):
            cotangents: dict[str, Any] = {name: PRIMITIVES.Zero(arguments[name].aval) for name in undefined}
        elif not chain and len(undefined) == 1 and undefined[0] in self.linear:
            # The value of an operand in which the result is linear does not affect its cotangent.
            values = arguments | {
                name: jax_internals.instantiate_zeros(PRIMITIVES.Zero(arguments[name].aval)) for name in undefined
            }
            results = bind(*values.values(), *cts, chain=(Step("vjp", undefined),))
            cotangents = dict(zip(undefined, results, strict=True))
        else:
            cotangents = self._transpose_last_step(cts, arguments, undefined, bind, present, chain)
        return [cotangents.get(name) for name in arguments]

    def _transpose_last_step(
        self,
        cts: Sequence[Any],
        arguments: dict[str, Any],
        undefined: tuple[str, ...],
        bind: Callable[..., list[jax.Array]],
        present: tuple[str, ...],
        chain: Chain,
    ) -> Arrays:
        """A chain is linear in the arguments that its last step appends: tangents or cotangents."""
        earlier, last = chain[:-1], chain[-1:]
        roles, results = _roles(present, earlier)
        if not last or undefined[0] in roles:
            kind = "a derivative of " if chain else ""
            operands = [_roles(present, chain)[0][name] for name in undefined]
            raise NotImplementedError(f"{kind}{self.name} is not known to be linear in its operands {operands}")
        primals = [arguments[name] for name in roles]
        if last[0].mode == "jvp":
            # Other tangents may be defined, such as a zero that `scan` instantiated. They need no cotangent.
            tangents = {_tangent_name(name, len(earlier)): name for name in last[0].arguments}
            step = Step("vjp", tuple(tangents[name] for name in undefined))
            transposed = bind(*primals, *map(jax_internals.instantiate_zeros, cts), chain=(*earlier, step))
            return dict(zip(undefined, transposed, strict=True))
        active = {name: ct for name, ct in zip(last[0].arguments, cts, strict=True) if type(ct) is not PRIMITIVES.Zero}
        transposed = bind(*primals, *active.values(), chain=(*earlier, Step("jvp", tuple(active))))
        names = (_cotangent_name(name, len(earlier)) for name in results)
        return {name: array for name, array in zip(names, transposed, strict=True) if name in undefined}

    def _batching_rule(
        self,
        arrays: Sequence[jax.Array],
        dims: Sequence[int | None],
        *,
        present: tuple[str, ...],
        chain: Chain,
        **params: Any,
    ) -> tuple[list[jax.Array], list[int]]:
        """Adds a leading batch dimension.

        Shared operands get it, too, if one of them is batched or its cotangent is requested, which differs per example.
        """
        arguments, results = _roles(present, chain)
        is_shared = [role in self.shared for role in arguments.values()]
        a_shared_one_is_mapped = any(dim is not None for dim, shared in zip(dims, is_shared, strict=True) if shared)
        all_are_batched = (
            a_shared_one_is_mapped
            or self._shared_batch(arrays, present) > 0
            or any(role in self.shared for role in results.values())
        )
        batched = [k for k, shared in enumerate(is_shared) if all_are_batched or not shared]
        leading = jax_internals.move_to_front([arrays[k] for k in batched], [dims[k] for k in batched])
        operands = list(arrays)
        for k, array in zip(batched, leading, strict=True):
            operands[k] = array
        out = self._bind(*operands, present=present, chain=chain, **params)
        return out, [0] * len(out)


class Call(NamedTuple):
    """A call of an operator, by the shapes of its operands."""

    operator: Operator[Any]
    avals: Sequence[Any]
    present: tuple[str, ...]
    chain: Chain
    spec: Any
    backend: Backend

    def plan(self, target: Target) -> tuple[ComputationPlan, ...]:
        """The plans of the call's computations: of the forward and each gradient, or of the gradients that it asks for.

        Raises, as lowering does, if the kernels would run and were not built.
        """
        operator, shapes = self.operator, dict(zip(self.present, self.avals, strict=False))
        names = operator._dimensions(shapes, self.spec)

        def flat(name: str) -> Any:
            return jax.eval_shape(partial(operator._flat, role=name, names=names), shapes[name])

        operands = operator._with_absent({name: flat(name) for name in self.present})
        result = operator.result(operands, spec=self.spec)
        why = why_reference(target.platform, self.backend)
        if not why:
            extension.require(target.platform)

        computations = self.chain[0].arguments if self.chain else ("forward", *self.present)
        plans: dict[str, ComputationPlan] = {}
        if not why:
            gradients = Step("vjp", tuple(name for name in computations if name != "forward"))
            for step in (gradients,) if self.chain else (None, gradients):
                plans |= operator.plan(Request(step, self.spec, target), operands)

        def plan(computation: str) -> ComputationPlan:
            if why:
                size = operator.samples(operands, spec=self.spec)
                planned = ComputationPlan(computation, "reference", why, size)
            else:
                planned = plans[computation]
            present = _present(operands)
            gradient = [] if computation == "forward" else [present[computation]]
            arrays: list[Any] = [result, *gradient, *present.values()]
            return dataclasses.replace(
                planned,
                computation=operator.words(self.spec).get(computation, computation),
                flops=operator.flops(computation, operands, spec=self.spec),
                bytes_accessed=sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays),
            )

        return tuple(map(plan, computations))


_RECORDED_CALLS: ContextVar[list[Call] | None] = ContextVar("recorded calls of operators", default=None)


def calls_of(function: Callable[..., Any], *args: Any, **keywords: Any) -> list[Call]:
    """The calls of operators that a function makes, found by tracing it."""
    calls: list[Call] = []
    token = _RECORDED_CALLS.set(calls)
    try:
        jax.eval_shape(lambda *args, **keywords: function(*args, **keywords), *args, **keywords)
    finally:
        _RECORDED_CALLS.reset(token)
    return calls


class _Evaluation(NamedTuple, Generic[Spec]):
    """What the function that a chain makes is evaluated with, besides its arguments."""

    present: tuple[str, ...]
    chain: Chain
    spec: Spec
    shards: Mapping[str, partition.Shard]
    all_reduced: tuple[str, ...]
    target: Target


def _present(operands: Any) -> Arrays:
    return {name: array for name, array in operands._asdict().items() if array is not None}


def _tangent_name(name: str, depth: int) -> str:
    return f"tangent {depth} of {name}"


def _cotangent_name(name: str, depth: int) -> str:
    return f"cotangent {depth} of {name}"


def _roles(present: tuple[str, ...], chain: Chain) -> tuple[Roles, Roles]:
    """The roles of a chain's arguments and of its results, by name and in order.

    The depth of a step in its chain makes the names of the arguments that it appends unique.
    """
    arguments, results = {name: name for name in present}, {RESULT: RESULT}
    for depth, (mode, names) in enumerate(chain):
        active = {name: arguments[name] for name in names}
        if mode == "jvp":
            arguments |= {_tangent_name(name, depth): role for name, role in active.items()}
        else:
            arguments |= {_cotangent_name(name, depth): role for name, role in results.items()}
            results = active
    return arguments, results


def _shards_of_chunk(shards: Mapping[str, partition.Shard], starts: chunks.Starts) -> dict[str, partition.Shard]:
    """The shards of a device, from where a chunk of them begins."""
    whole = partition.Shard(1, 0)
    of_device = {name: shards.get(name, whole) for name in starts}
    return {**shards, **{name: shard._replace(start=shard.start + starts[name]) for name, shard in of_device.items()}}


def _derivative(function: Callable[[Arrays], Arrays], chain: Chain) -> Callable[[Arrays], Arrays]:
    """Applies the steps of a chain to a function from arrays by name to arrays by name."""
    if not chain:
        return function
    *earlier, (mode, names) = chain
    inner, depth = _derivative(function, tuple(earlier)), len(earlier)

    def derivative(arguments: Arrays) -> Arrays:
        def of_active(active: Arrays) -> Arrays:
            return inner(arguments | active)

        active = {name: arguments[name] for name in names}
        if mode == "jvp":
            tangents = {name: arguments[_tangent_name(name, depth)] for name in names}
            tangents_out: Arrays = jax.jvp(of_active, (active,), (tangents,))[1]
            return tangents_out
        results, pull_back = jax.vjp(of_active, active)
        cotangents: Arrays = pull_back({name: arguments[_cotangent_name(name, depth)] for name in results})[0]
        return cotangents

    return derivative


def _mapped(function: Callable[[Arrays], Arrays], dimensions: int) -> Callable[[Arrays], Arrays]:
    """Applies `function` to each example in this number of leading dimensions, one after the other."""
    for _ in range(dimensions):
        function = partial(jax.lax.map, function)
    return function
