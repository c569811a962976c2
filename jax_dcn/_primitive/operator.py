"""What an operator is, as records: its definition, its kernels, and the dimensions of its arrays.

Their functions take the operands as a named tuple, in which an absent operand is None.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import jax

from jax_dcn._primitive import extension, jax_internals
from jax_dcn._primitive.chain import RESULT, Arrays, Params
from jax_dcn._primitive.partition import NamedArray, Names
from jax_dcn._primitive.plan import Plans
from jax_dcn._types import Backend

Spec = TypeVar("Spec")


@dataclass(frozen=True)
class Definition:
    """What an operator computes.

    Args:
      operands: the type of the named tuple of operands, in the order in which the primitive takes them.
      result: `result(operands, spec)` maps shapes and dtypes of the operands to those of the result. It raises an error
        if they do not fit together.
      reference: `reference(operands, **keywords)`, the operator in `jax.numpy`, which defines it and its derivatives.
      shared: the number of dimensions of each operand that all examples of a batch share, as they do weights. If these
        operands are batched, then all of them are, by the leading batch dimensions of the other operands.
      linear: the operands in each of which the result is linear.
    """

    operands: Any
    result: Callable[..., jax.ShapeDtypeStruct]
    reference: Callable[..., jax.Array]
    shared: Mapping[str, int]
    linear: tuple[str, ...]


@dataclass(frozen=True)
class Kernels:
    """How the kernels of an operator compute it and its first derivatives.

    Args:
      plan: `plan(request, operands)`, from shapes, decides how the computations of a `Request` are done, once, before
        anything is computed. It returns a `ComputationPlan` for each, by name. Costs are added to it by `flops`.
      forward: `forward(plans, operands, **keywords)` computes the same as the reference, as planned.
      cotangent: `cotangent(plans, operands, ct, **keywords)` computes the planned cotangents, and returns them by name.
        They have the dtypes of the operands or the wider dtype in which sums are taken.
      flops: `flops(computation, operands, spec)`, from shapes, the floating-point operations of a computation.
      tangent: `tangent(plans, operands, tangents, **keywords)` computes the tangent of the result from those of some
        operands, by name, as planned. None if there is no kernel.
      platforms: those for which there are kernels. On others, the reference computes everything.
    """

    plan: Callable[..., Plans]
    forward: Callable[..., jax.Array]
    cotangent: Callable[..., Arrays]
    flops: Callable[..., int]
    tangent: Callable[..., jax.Array] | None = None
    platforms: Collection[str] = tuple(extension.PLATFORMS)


class Axes(NamedTuple):
    """Which dimensions of an operator's arrays may be sharded.

    operands, result: the names of the dimensions of each operand and of the result, without batch dimensions, as
      `partition` defines them. sizes: the largest number of equal shards that each name allows.
    """

    operands: Mapping[str, Names]
    result: Names
    sizes: dict[str, int]


@dataclass(frozen=True)
class Dimensions:
    """How the arrays of an operator are divided: among devices, and into the parts of a loop.

    Args:
      axes: `axes(operands, spec)`, from shapes, the dimensions that may be sharded.
      keywords: `keywords(spec, shards)`, the keywords of `reference`, `forward`, `tangent` and `cotangent` on a device
        that has these shards; by default the spec.
      part_lengths: `part_lengths(operands, target)`, from shapes with one batch dimension, the lengths of the parts in
        which derivatives of the reference are evaluated, by the names of `axes` and "batch". The reference of these
        parts must add up to that of the whole. By default there is one part.
      sample_bytes: `sample_bytes(operands, spec)`, from shapes, the bytes of the reference's samples, its least
        workspace; by default 0.
    """

    axes: Callable[..., Axes]
    keywords: Callable[..., dict[str, Any]] = lambda spec, shards: {"spec": spec}
    part_lengths: Callable[..., Mapping[str, Any]] = lambda operands, target: {}
    sample_bytes: Callable[..., int] = lambda operands, spec: 0


@dataclass(frozen=True, eq=False)
class Operator(Generic[Spec]):
    """An operator, of which `primitive.Primitive` makes a JAX primitive.

    Args:
      name: the name of the operator and of its primitive.
      user_names: `user_names(spec)`, what users call operands, where that is not their name.
      is_native: whether the reference is an operation of XLA, which XLA's partitioner shards, and which computes
        examples with shared operands of their own at once.
    """

    name: str
    definition: Definition
    kernels: Kernels
    dimensions: Dimensions
    user_names: Callable[[Spec], Mapping[str, str]] = lambda spec: {}
    is_native: bool = False

    def why_reference(self, platform: str, backend: Backend) -> str:
        """Why the reference computes what kernels could, as a sentence; empty where the kernels do.

        Raises ValueError where a path of kernels was requested that the operator does not have on the platform.
        """
        if platform not in self.kernels.platforms and self.is_native and backend == "fused":
            raise ValueError(
                f"backend='fused' cannot compute {self.name} on {platform}, where it is an operation of XLA. With "
                "backend=None it can be computed"
            )
        if backend == "reference":
            return f"backend={backend!r} was passed"
        if platform in self.kernels.platforms:
            return ""
        if self.is_native:
            return f"it is an operation of XLA, which needs no kernels for {platform}"
        return f"{jax_internals.PACKAGE} has no kernels for {platform}"

    def operands_of(self, arrays: Mapping[str, Any]) -> Any:
        """The operands among `arrays`, those that are absent as None."""
        operands = self.definition.operands
        return operands(*(arrays.get(name) for name in operands._fields))

    def num_shared_batch_dims(self, arguments: Sequence[Any], params: Params) -> int:
        """The number of batch dimensions of the shared operands."""
        operands, shared = zip(params.present, arguments, strict=False), self.definition.shared
        return next((array.ndim - shared[name] for name, array in operands if name in shared), 0)

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
        axes = self.dimensions.axes(operands, spec=params.spec)
        result = self.definition.result(operands, spec=params.spec)

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
        axes = self.dimensions.axes(self.operands_of(operands), spec=spec)
        of_example = {**axes.operands, RESULT: axes.result}
        return {
            role: names if role in self.definition.shared else ("batch", *names) for role, names in of_example.items()
        }


def present(operands: Any) -> Arrays:
    return {name: array for name, array in operands._asdict().items() if array is not None}
