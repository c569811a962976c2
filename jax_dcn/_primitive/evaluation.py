"""What an operator's primitive computes on a device: by a kernel, by the reference in parts, or by the whole reference.

The parts keep the workspace of derivatives of the reference from growing with the batch.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from jax_dcn._primitive import parts
from jax_dcn._primitive.chain import RESULT, Arrays, Chain, Params, cotangent_name, differentiated, tangent_name
from jax_dcn._primitive.operator import Operator
from jax_dcn._primitive.partition import NamedArray, Names, Shard, ShardedFunction, widened
from jax_dcn._primitive.plan import Request
from jax_dcn._primitive.promotion import by_standard_rules, sum_dtype
from jax_dcn._primitive.target import Target


def function_of(operator: Operator[Any], params: Params, target: Target | None) -> ShardedFunction:
    """The function that the primitive represents: as a target with kernels computes it, or by the reference if None."""
    arguments, results = params.signature

    @by_standard_rules
    def function(*args: jax.Array, shards: Mapping[str, Shard], all_reduced: Sequence[bool]) -> tuple[jax.Array, ...]:
        reduced = tuple(name for name, is_reduced in zip(results, all_reduced, strict=True) if is_reduced)
        evaluation = _Evaluation(operator, params, shards, reduced)
        evaluate: Callable[[Arrays], Arrays] = evaluation.by_reference
        if target is not None:
            by_target = evaluation.by_kernel if has_kernel(operator, params.chain) else evaluation.by_parts
            evaluate = partial(by_target, target=target)
        # Examples that do not share the shared operands are evaluated one after the other, unless XLA does it at once.
        is_at_once = target is None and operator.is_native
        for _ in range(operator.num_shared_batch_dims(args, params)):
            evaluate = jax.vmap(evaluate) if is_at_once else partial(jax.lax.map, evaluate)
        outs = evaluate(dict(zip(arguments, args, strict=True)))
        return tuple(outs[name] for name in results)

    return function


def has_kernel(operator: Operator[Any], chain: Chain) -> bool:
    return not chain or (len(chain) == 1 and (chain[0].mode == "vjp" or operator.kernels.tangent is not None))


def flat(array: jax.Array, names: Names) -> jax.Array:
    """The array with all batch dimensions as one, if it has a batch. `names` are those of `Operator.flat_names`."""
    if names[:1] != ("batch",):
        return array
    num_batch_dims = array.ndim - len(names) + 1
    return array.reshape(math.prod(array.shape[:num_batch_dims]), *array.shape[num_batch_dims:])


@dataclass(frozen=True)
class _Evaluation:
    """The evaluation of one function on a device that has these shards. The results in `all_reduced` stay wide."""

    operator: Operator[Any]
    params: Params
    shards: Mapping[str, Shard]
    all_reduced: tuple[str, ...]

    def by_reference(self, arrays: Arrays) -> Arrays:
        # The terms of an all-reduce stay wide. Only the sum is rounded.
        return self._reference(arrays, self.shards, is_wide=bool(self.all_reduced))

    def by_kernel(self, arrays: Arrays, target: Target) -> Arrays:
        arguments, results = self.params.signature
        names = self.operator.flat_names(arrays, self.params.spec)
        flat_arrays = {name: flat(arrays[name], names[role]) for name, role in arguments.items()}
        outs = self._kernel_results(flat_arrays, target)
        batched = next(name for name in self.params.present if name not in self.operator.definition.shared)
        batch = arrays[batched].shape[: arrays[batched].ndim - len(names[batched]) + 1]

        def unflat(out: jax.Array, role: str) -> jax.Array:
            return out.reshape((*batch, *out.shape[1:]) if role == RESULT else arrays[role].shape)

        return {name: unflat(outs[name], role) for name, role in results.items()}

    def _kernel_results(self, arrays: Arrays, target: Target) -> Arrays:
        operator, operands = self.operator, self.operator.operands_of(arrays)
        keywords = operator.dimensions.keywords(self.params.spec, self.shards)
        step = self.params.chain[0] if self.params.chain else None
        plans = operator.kernels.plan(Request(step, keywords["spec"], target, self.all_reduced), operands)
        if step is None:
            return {RESULT: operator.kernels.forward(plans, operands, **keywords)}
        if step.mode == "jvp" and operator.kernels.tangent is not None:
            tangents = {name: arrays[tangent_name(name, 0)] for name in step.arguments}
            return {RESULT: operator.kernels.tangent(plans, operands, tangents, **keywords)}
        return operator.kernels.cotangent(plans, operands, arrays[cotangent_name(RESULT, 0)], **keywords)

    def by_parts(self, arrays: Arrays, target: Target) -> Arrays:
        """Derivatives of the reference, with the workspace of a part of the operands."""
        operator, (arguments, results) = self.operator, self.params.signature
        names = operator.flat_names(arrays, self.params.spec)
        shapes = {role: jax.typeof(arrays[name]) for name, role in arguments.items()}
        if RESULT not in shapes:
            reference = partial(
                operator.definition.reference, **operator.dimensions.keywords(self.params.spec, self.shards)
            )
            shapes[RESULT] = jax.eval_shape(reference, operator.operands_of(arrays))

        def flat_result(name: str, role: str) -> NamedArray:
            struct = jax.eval_shape(partial(flat, names=names[role]), shapes[role])
            dtype = sum_dtype(struct.dtype) if name in self.all_reduced else struct.dtype
            return NamedArray(names[role], struct.shape, dtype)

        def of_part(part: Arrays, starts: parts.Starts) -> Arrays:
            return self._reference(part, _shards_of_part(self.shards, starts), is_wide=True)

        flat_arrays = {name: flat(arrays[name], names[role]) for name, role in arguments.items()}
        outs = parts.evaluate(
            of_part,
            flat_arrays,
            arguments={name: names[role] for name, role in arguments.items()},
            results={name: flat_result(name, role) for name, role in results.items()},
            lengths=tuple(operator.dimensions.part_lengths(operator.operands_of(flat_arrays), target=target).items()),
            fill=len(self.params.chain),
        )
        return {name: outs[name].reshape(shapes[role].shape) for name, role in results.items()}

    def _reference(self, arrays: Arrays, shards: Mapping[str, Shard], *, is_wide: bool) -> Arrays:
        """The derivative of the reference. If `is_wide`, arguments and results have the dtype of sums."""
        operator, keywords = self.operator, self.operator.dimensions.keywords(self.params.spec, shards)
        widen = widened if is_wide else lambda array: array

        def reference(arrays: Arrays) -> Arrays:
            return {RESULT: widen(operator.definition.reference(operator.operands_of(arrays), **keywords))}

        return differentiated(reference, self.params.chain)({name: widen(array) for name, array in arrays.items()})


def _shards_of_part(shards: Mapping[str, Shard], starts: parts.Starts) -> dict[str, Shard]:
    """The shards of a device, from where a part of them begins."""
    whole = Shard(1, 0)
    of_device = {name: shards.get(name, whole) for name in starts}
    return {**shards, **{name: shard._replace(start=shard.start + starts[name]) for name, shard in of_device.items()}}
