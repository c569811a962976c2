"""The plans of the operators that a function calls, which `kernel_plan` shows."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from jax_dcn._primitive import extension
from jax_dcn._primitive.chain import Step
from jax_dcn._primitive.evaluation import flat
from jax_dcn._primitive.operator import present
from jax_dcn._primitive.plan import ComputationPlan, Request
from jax_dcn._primitive.primitive import RECORDED_BINDINGS, Binding
from jax_dcn._primitive.target import Target


def bindings_of(function: Callable[..., Any], *args: Any, **keywords: Any) -> list[Binding]:
    """The bindings of operators' primitives that a function makes, found by tracing it."""
    bindings: list[Binding] = []
    token = RECORDED_BINDINGS.set(bindings)
    try:
        jax.eval_shape(lambda *args, **keywords: function(*args, **keywords), *args, **keywords)
    finally:
        RECORDED_BINDINGS.reset(token)
    return bindings


def plans_of(binding: Binding, target: Target) -> tuple[ComputationPlan, ...]:
    """The plans of a call's computations: of the forward and each gradient, or of the gradients that it asks for.

    Raises, as lowering does, if the kernels would run and were not built.
    """
    operator, (names, chain, spec, backend) = binding.operator, binding.params
    shapes = dict(zip(names, binding.avals, strict=False))
    flat_names = operator.flat_names(shapes, spec)
    operands = operator.operands_of(
        {name: jax.eval_shape(partial(flat, names=flat_names[name]), shape) for name, shape in shapes.items()}
    )
    result = operator.definition.result(operands, spec=spec)
    computations = chain[0].arguments if chain else ("forward", *names)
    why = operator.why_reference(target.platform, backend)
    if why:
        path, size = "xla" if operator.is_native else "reference", operator.dimensions.sample_bytes(operands, spec=spec)
        plans = {name: ComputationPlan(name, path, why, size) for name in computations}
    else:
        extension.require(target.platform)
        gradients = Step("vjp", tuple(name for name in computations if name != "forward"))
        plans = {}
        for step in (gradients,) if chain else (None, gradients):
            plans |= operator.kernels.plan(Request(step, spec, target), operands)

    def with_costs(computation: str) -> ComputationPlan:
        arrays = present(operands)
        gradient = [] if computation == "forward" else [arrays[computation]]
        accessed: list[Any] = [result, *gradient, *arrays.values()]
        return dataclasses.replace(
            plans[computation],
            computation=operator.user_names(spec).get(computation, computation),
            flops=operator.kernels.flops(computation, operands, spec=spec),
            bytes_accessed=sum(math.prod(array.shape) * array.dtype.itemsize for array in accessed),
        )

    return tuple(map(with_costs, computations))
