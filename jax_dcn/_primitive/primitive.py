"""Makes an operator a JAX primitive, with a rule for every transformation, from its reference and its kernels.

One primitive represents the operator and all its derivatives. Its static parameters have a chain of differentiation
steps, which says which derivative it is (`chain.py`). The value and the first derivatives run in kernels. Every other
derivative is derived from the reference. On a platform without kernels, and where the user asks for it, the whole
reference computes everything.

`rules.py` has the rules of the primitive, and `evaluation.py` what a lowered primitive computes.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, NamedTuple

import jax

from jax_dcn._primitive import extension, jax_internals
from jax_dcn._primitive.chain import Arrays, Params
from jax_dcn._primitive.operator import Operator, Spec, present
from jax_dcn._primitive.rules import Rules
from jax_dcn._types import Backend

PRIMITIVES: set[Any] = set()  # those of jax, of all operators


class Primitive(Generic[Spec]):
    """An operator as a JAX primitive, called with its operands."""

    def __init__(self, operator: Operator[Spec]) -> None:
        self.operator = operator
        # jax has to know the devices when it lowers a computation that is partitioned. Inside `shard_map` nothing is
        # left to partition, and the devices may be unknown.
        rules = Rules(operator, self.bind)
        self._partitioned = _made(rules, is_partitioned=True)
        self._manual = _made(rules, is_partitioned=False)
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
            recorded.append(Binding(self.operator, list(map(jax.typeof, arguments)), params))
        primitive = self._manual if jax_internals.all_axes_are_manual() else self._partitioned
        return primitive.bind(*arguments, **params._asdict())


def _made(rules: Rules, *, is_partitioned: bool) -> Any:
    """A primitive of jax that XLA's partitioner may shard, or one that runs as it is."""
    primitive = jax_internals.Primitive(rules.operator.name)
    primitive.multiple_results = True
    primitive.def_impl(partial(jax_internals.apply_primitive, primitive))
    primitive.def_abstract_eval(rules.abstract_evaluation)
    jax_internals.primitive_jvps[primitive] = rules.jvp
    jax_internals.primitive_transposes[primitive] = rules.transpose
    jax_internals.primitive_batchers[primitive] = rules.batching
    for platform in (None, *extension.PLATFORMS):
        lower = partial(rules.lowering, platform, is_partitioned)
        rule = partial(jax_internals.lower_without_explicit_mesh, lower)
        jax_internals.register_lowering(primitive, rule, platform=platform)
    PRIMITIVES.add(primitive)
    return primitive


def operators_saveable(primitive: Any, *_: Any, **__: Any) -> bool:
    """A policy of `jax.checkpoint` that saves the results of this package's operators.

    ``jax.checkpoint_policies.dots_saveable`` saves those of ordinary convolutions and products. To save both::

        policies = jax.checkpoint_policies
        policy = policies.save_from_both_policies(policies.dots_saveable, jax_dcn.operators_saveable)

    `nms`, `fpn_levels` and `find_peaks`, which are plain `jax.numpy`, are computed again.
    """
    return primitive in PRIMITIVES


class Binding(NamedTuple):
    """An operator's primitive, bound to arguments of these types."""

    operator: Operator[Any]
    avals: Sequence[Any]
    params: Params


# While `kernel_plan` traces a function, each binding of the function.
RECORDED_BINDINGS: ContextVar[list[Binding] | None] = ContextVar("recorded bindings", default=None)
