"""Makes an operator a JAX primitive, with a rule for every transformation, from its reference and its kernels.

One primitive represents the operator and all its derivatives. Its static parameters have a chain of differentiation
steps, which says which derivative it is (`chain.py`). The value and the first derivatives run in kernels. Every other
derivative is derived from the reference. On a platform without kernels, and where the user asks for it, the whole
reference computes everything.

`rules.py` has the rules of the primitive, and `evaluation.py` what a lowered primitive computes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import jax

from jax_dcn._primitive import extension, jax_internals, rules
from jax_dcn._primitive.chain import RESULT, Arrays, Params
from jax_dcn._primitive.partition import NamedArray, Names, Shard
from jax_dcn._primitive.plan import Plans
from jax_dcn._types import Backend

Spec = TypeVar("Spec")


class Axes(NamedTuple):
    """Which dimensions of an operator's arrays may be sharded.

    operands, result: the names of the dimensions of each operand and of the result, without batch dimensions, as
      `partition` defines them. sizes: the largest number of equal shards that each name allows.
    """

    operands: Mapping[str, Names]
    result: Names
    sizes: dict[str, int]


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
      sample_bytes: `sample_bytes(operands, spec)`, from shapes, the bytes of the reference's samples, its least
        workspace.
      user_names: `user_names(spec)`, what users call operands, where that is not their name.
      axes: `axes(operands, spec)`, from shapes, the dimensions that may be sharded.
      keywords: `keywords(spec, shards)`, the keywords of `reference`, `forward`, `tangent` and `cotangent` on a device
        that has these shards.
      part_lengths: `part_lengths(operands, target)`, from shapes with one batch dimension, the lengths of the parts in
        which derivatives of the reference are evaluated, by the names of `axes` and "batch". The reference of these
        parts must add up to that of the whole.
      shared: the number of dimensions of each operand that all examples of a batch share, as they do weights. If these
        operands are batched, then all of them are, by the leading batch dimensions of the other operands.
      linear: the operands in each of which the result is linear.
      platforms: those for which there are kernels. On others, the reference computes everything.
      is_native: whether the reference is an operation of XLA, which XLA's partitioner shards, and which computes
        examples with shared operands of their own at once.
    """

    name: str
    operands: Any
    result: Callable[..., jax.ShapeDtypeStruct]
    reference: Callable[..., jax.Array]
    plan: Callable[..., Plans]
    forward: Callable[..., jax.Array]
    tangent: Callable[..., jax.Array] | None
    cotangent: Callable[..., Arrays]
    flops: Callable[..., int]
    sample_bytes: Callable[..., int]
    axes: Callable[..., Axes]
    keywords: Callable[[Spec, Mapping[str, Shard]], dict[str, Any]]
    part_lengths: Callable[..., Mapping[str, Any]]
    shared: Mapping[str, int]
    linear: tuple[str, ...]
    user_names: Callable[[Spec], Mapping[str, str]] = lambda spec: {}
    platforms: Collection[str] = tuple(extension.PLATFORMS)
    is_native: bool = False

    def __post_init__(self) -> None:
        # jax has to know the devices when it lowers a computation that is partitioned. Inside `shard_map` nothing is
        # left to partition, and the devices may be unknown.
        self._partitioned = rules.make_primitive(self, is_partitioned=True)
        self._manual = rules.make_primitive(self, is_partitioned=False)
        jax_internals.require_devices_during_lowering(self._partitioned)

    def __call__(self, operands: Any, *, spec: Spec, backend: Backend = None) -> jax.Array:
        arrays = present(operands)
        (result,) = self.bind(arrays.values(), Params(tuple(arrays), (), spec, backend))
        return result

    def cotangents(
        self, operands: Any, *, cotangent: jax.Array, requested: tuple[str, ...], spec: Spec, backend: Backend = None
    ) -> Arrays:
        """The cotangents of the operands in `requested`, by name, from the cotangent of the result."""
        arrays = present(operands)
        params = Params(tuple(arrays), (), spec, backend).then("vjp", requested)
        return dict(zip(requested, self.bind([*arrays.values(), cotangent], params), strict=True))

    def bind(self, arguments: Any, params: Params) -> list[jax.Array]:
        arguments = list(arguments)
        if (recorded := RECORDED_BINDINGS.get()) is not None:
            recorded.append(Binding(self, list(map(jax.typeof, arguments)), params))
        primitive = self._manual if jax_internals.all_axes_are_manual() else self._partitioned
        return primitive.bind(*arguments, **params._asdict())

    def why_reference(self, platform: str, backend: Backend) -> str:
        """Why the reference computes what kernels could, as a sentence; empty where the kernels do.

        Raises ValueError where a path of kernels was requested that the operator does not have on the platform.
        """
        if platform not in self.platforms and self.is_native and backend == "fused":
            raise ValueError(
                f"backend='fused' cannot compute {self.name} on {platform}, where it is an operation of XLA. With "
                "backend=None it can be computed"
            )
        if backend == "reference":
            return f"backend={backend!r} was passed"
        if platform in self.platforms:
            return ""
        if self.is_native:
            return f"it is an operation of XLA, which needs no kernels for {platform}"
        return f"{jax_internals.PACKAGE} has no kernels for {platform}"

    def operands_of(self, arrays: Mapping[str, Any]) -> Any:
        """The operands among `arrays`, those that are absent as None."""
        return self.operands(*(arrays.get(name) for name in self.operands._fields))

    def num_shared_batch_dims(self, arguments: Sequence[Any], params: Params) -> int:
        """The number of batch dimensions of the shared operands."""
        operands = zip(params.present, arguments, strict=False)
        return next((array.ndim - self.shared[name] for name, array in operands if name in self.shared), 0)

    def named_arrays(
        self, avals: Sequence[jax.core.ShapedArray], params: Params
    ) -> tuple[list[NamedArray], list[NamedArray], dict[str, int]]:
        """The arguments and the results with named dimensions, and the largest number of shards of each name."""
        shared_batch = avals[0].shape[: self.num_shared_batch_dims(avals, params)]
        shapes = {
            name: jax.ShapeDtypeStruct(aval.shape[len(shared_batch) :], aval.dtype)
            for name, aval in zip(params.present, avals, strict=False)
        }
        operands = self.operands_of(shapes)
        axes, result = self.axes(operands, spec=params.spec), self.result(operands, spec=params.spec)

        def with_batch(names: Names, like: jax.ShapeDtypeStruct) -> NamedArray:
            num_batch_dims = len(shared_batch) + len(like.shape) - len(names)
            batch_names = (f"batch{k}" for k in range(num_batch_dims))
            return NamedArray((*batch_names, *names), (*shared_batch, *like.shape), like.dtype)

        by_role = {name: with_batch(axes.operands[name], shape) for name, shape in shapes.items()}
        by_role[RESULT] = with_batch(axes.result, result)
        batch_names = by_role[RESULT].names[: -len(axes.result)]
        batch_sizes = {
            name: size for name, size in zip(batch_names, by_role[RESULT].shape, strict=False) if name is not None
        }
        arguments, results = ([by_role[role] for role in roles.values()] for roles in params.signature)
        return arguments, results, axes.sizes | batch_sizes

    def flat_names(self, operands: Mapping[str, Any], spec: Spec) -> dict[str, Names]:
        """The names of the dimensions of each role, with all batch dimensions, which shared operands lack, as one."""
        axes = self.axes(self.operands_of(operands), spec=spec)
        of_example = {**axes.operands, RESULT: axes.result}
        return {role: names if role in self.shared else ("batch", *names) for role, names in of_example.items()}


def operators_saveable(primitive: Any, *_: Any, **__: Any) -> bool:
    """A policy of `jax.checkpoint` that saves the results of this package's operators.

    ``jax.checkpoint_policies.dots_saveable`` saves those of ordinary convolutions and products. To save both::

        policies = jax.checkpoint_policies
        policy = policies.save_from_both_policies(policies.dots_saveable, jax_dcn.operators_saveable)

    `nms`, `fpn_levels` and `find_peaks`, which are plain `jax.numpy`, are computed again.
    """
    return primitive.name.startswith("deform")


class Binding(NamedTuple):
    """An operator's primitive, bound to arguments of these types."""

    operator: Operator[Any]
    avals: Sequence[Any]
    params: Params


# While `kernel_plan` traces a function, each binding of the function.
RECORDED_BINDINGS: ContextVar[list[Binding] | None] = ContextVar("recorded bindings", default=None)


def present(operands: Any) -> Arrays:
    return {name: array for name, array in operands._asdict().items() if array is not None}
