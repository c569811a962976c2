"""The rules of an operator's primitive: abstract evaluation, lowering, derivatives and batching."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jax_dcn._primitive import extension, jax_internals, meshes, partition, target
from jax_dcn._primitive.chain import RESULT, Arrays, Params, cotangent_name, tangent_name
from jax_dcn._primitive.evaluation import function_of, has_kernel
from jax_dcn._primitive.jax_internals import Zero
from jax_dcn._primitive.operator import Operator
from jax_dcn._primitive.partition import NamedArray


@dataclass(frozen=True)
class Rules:
    """The rules of the primitive of `operator`, which `bind` binds to arguments."""

    operator: Operator[Any]
    bind: Callable[[Any, Params], list[jax.Array]]

    def abstract_evaluation(self, *avals: jax.core.ShapedArray, **static: Any) -> list[jax.core.ShapedArray]:
        params = Params(**static)
        arguments, results, sizes = self.operator.named_arrays(avals, params)
        like = next((aval for aval in avals if not aval.sharding.mesh.empty), avals[0])
        specs = [aval.sharding.spec for aval in avals]
        mesh_axes = partition.assign([array.names for array in arguments], specs, sizes, like.sharding.mesh)
        operands = dict(zip(params.present, avals, strict=False))

        def aval_of(role: str, array: NamedArray) -> jax.core.ShapedArray:
            if role != RESULT:
                return operands[role].update(weak_type=False)
            return jax_internals.result_aval(like, array.shape, array.dtype, partition.spec_of(array.names, mesh_axes))

        return list(map(aval_of, params.signature.results.values(), results))

    def lowering(self, platform: str | None, is_partitioned: bool, ctx: Any, *args: Any, **static: Any) -> Any:
        """`platform` is None for platforms without kernels."""
        params = Params(**static)
        kernels = None
        if platform is not None and not self.operator.why_reference(platform, params.backend):
            if has_kernel(self.operator, params.chain):
                extension.require(platform)
            kernels = target.of_lowering(platform, ctx)
        function = function_of(self.operator, params, kernels)
        arguments, results, sizes = self.operator.named_arrays(ctx.avals_in, params)
        xla_partitions_it = kernels is None and self.operator.is_native
        found = meshes.meshes_to_partition(ctx) if is_partitioned and not xla_partitions_it else None
        if found is None:
            return _lower(partition.unsharded(function, results), ctx, args)
        lowered = _lower(partition.partitioned(function, arguments, results, sizes, found), ctx, args)
        _, chain, spec, backend = params
        name = f"{self.operator.name} {chain} {params.present} {spec} {kernels or platform} {backend}"
        jax_internals.annotate(lowered, name)
        return lowered

    def jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], **static: Any
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        params = Params(**static)
        active = _without_zeros(params.signature.arguments, tangents)
        results = self.bind(primals, params)
        return results, self.bind([*primals, *active.values()], params.then("jvp", tuple(active)))

    def transpose(self, cts: Sequence[Any], *args: Any, **static: Any) -> list[Any]:
        """The cotangents of the undefined arguments, in which the function has to be linear; None for the others."""
        params = Params(**static)
        roles = params.signature.arguments
        arguments = dict(zip(roles, args, strict=True))
        undefined = tuple(name for name, arg in arguments.items() if jax_internals.is_undefined_primal(arg))
        cotangents: dict[str, Any]
        if all(type(ct) is Zero for ct in cts):
            cotangents = {name: Zero(arguments[name].aval) for name in undefined}
        elif not params.chain and len(undefined) == 1 and undefined[0] in self.operator.definition.linear:
            cotangents = self._transpose_operator(params, arguments, undefined, cts)
        elif params.chain and undefined[0] not in params.before_last_step.signature.arguments:
            is_jvp = params.chain[-1].mode == "jvp"
            cotangents = (self._transpose_jvp if is_jvp else self._transpose_vjp)(params, arguments, undefined, cts)
        else:
            kind = "a derivative of " if params.chain else ""
            operands = [roles[name] for name in undefined]
            raise NotImplementedError(
                f"{kind}{self.operator.name} is not known to be linear in its operands {operands}"
            )
        return [cotangents.get(name) for name in arguments]

    def _transpose_operator(
        self, params: Params, arguments: dict[str, Any], undefined: tuple[str, ...], cts: Sequence[Any]
    ) -> Arrays:
        """The operator itself, in an operand in which it is linear: its value does not affect its cotangent."""
        zeros = {name: jax_internals.instantiate_zeros(Zero(arguments[name].aval)) for name in undefined}
        values = arguments | zeros
        results = self.bind([*values.values(), *cts], params.then("vjp", undefined))
        return dict(zip(undefined, results, strict=True))

    def _transpose_jvp(
        self, params: Params, arguments: dict[str, Any], undefined: tuple[str, ...], cts: Sequence[Any]
    ) -> Arrays:
        """A last step "jvp", in the tangents that it appends: the transpose is the step "vjp".

        Other tangents may be defined, such as a zero that `scan` instantiated. They need no cotangent.
        """
        earlier, step = params.before_last_step, params.chain[-1]
        primals = [arguments[name] for name in earlier.signature.arguments]
        argument_of = {tangent_name(name, len(earlier.chain)): name for name in step.arguments}
        requested = tuple(argument_of[tangent] for tangent in undefined)
        cotangents = map(jax_internals.instantiate_zeros, cts)
        return dict(zip(undefined, self.bind([*primals, *cotangents], earlier.then("vjp", requested)), strict=True))

    def _transpose_vjp(
        self, params: Params, arguments: dict[str, Any], undefined: tuple[str, ...], cts: Sequence[Any]
    ) -> Arrays:
        """A last step "vjp", in the cotangents that it appends: the transpose is the step "jvp"."""
        earlier, step = params.before_last_step, params.chain[-1]
        primals = [arguments[name] for name in earlier.signature.arguments]
        active = _without_zeros(step.arguments, cts)
        results = self.bind([*primals, *active.values()], earlier.then("jvp", tuple(active)))
        names = (cotangent_name(name, len(earlier.chain)) for name in earlier.signature.results)
        return {name: array for name, array in zip(names, results, strict=True) if name in undefined}

    def batching(
        self, arrays: Sequence[jax.Array], dims: Sequence[int | None], **static: Any
    ) -> tuple[list[jax.Array], list[int]]:
        """Adds a leading batch dimension.

        Shared operands get it, too, if one of them is batched or its cotangent is requested, which differs per example.
        """
        params = Params(**static)
        arguments, results = params.signature
        is_shared = [role in self.operator.definition.shared for role in arguments.values()]
        are_shared_batched = (
            any(shared and dim is not None for dim, shared in zip(dims, is_shared, strict=True))
            or self.operator.num_shared_batch_dims(arrays, params) > 0
            or any(role in self.operator.definition.shared for role in results.values())
        )
        batched = [k for k, shared in enumerate(is_shared) if are_shared_batched or not shared]
        moved = jax_internals.move_to_front([arrays[k] for k in batched], [dims[k] for k in batched])
        values = list(arrays)
        for k, array in zip(batched, moved, strict=True):
            values[k] = array
        outs = self.bind(values, params)
        return outs, [0] * len(outs)


def _lower(function: Any, ctx: Any, args: Sequence[Any]) -> Any:
    return jax_internals.lower_fun(function, multiple_results=True)(ctx, *args)


def _without_zeros(names: Any, tangents: Sequence[Any]) -> Arrays:
    """The tangents, or cotangents, that are no symbolic zeros, by name."""
    return {name: tangent for name, tangent in zip(names, tangents, strict=True) if type(tangent) is not Zero}
