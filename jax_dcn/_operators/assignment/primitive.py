"""The operator as a JAX primitive: its shapes, its sharding, and the custom call of its kernel.

The handler is in lib/assignment/handlers.cc.
"""

import math
from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp

from jax_dcn._operators.assignment.reference import column_of_rows
from jax_dcn._primitive import extension
from jax_dcn._primitive.operator import Axes, Definition, Dimensions, Kernels, Operator
from jax_dcn._primitive.plan import ComputationPlan, Plans, Request
from jax_dcn._primitive.primitive import Primitive
from jax_dcn._types import A, Shaped


class Operands(NamedTuple, Generic[A]):
    """The costs [..., rows, columns], float32 or float64; a pair whose cost is not finite is forbidden."""

    costs: A


def result(operands: Operands[Shaped], spec: None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(operands.costs.shape[:-1], jnp.int32)


def axes(operands: Operands[Shaped], spec: None) -> Axes:
    """Only the batch may be sharded."""
    return Axes(operands={"costs": (None, None)}, result=(None,), sizes={})


def reference(operands: Operands[jax.Array], *, spec: None) -> jax.Array:
    return column_of_rows(operands.costs)


def plan(request: Request, operands: Operands[Shaped]) -> Plans:
    if request.step is not None:
        return {"costs": ComputationPlan("costs", "xla", "it is zero")}
    problems, rows, columns = operands.costs.shape
    shorter, longer = sorted((rows, columns))
    workspace = problems * (8 * _workspace(shorter, longer) + 4 * shorter)
    return {"forward": ComputationPlan("forward", "kernel", workspace_bytes=workspace)}


def forward(plans: Plans, operands: Operands[jax.Array], *, spec: None) -> jax.Array:
    """The column of each row. The kernel assigns the dimension that is not longer."""
    problems, rows, columns = operands.costs.shape
    is_wide = rows <= columns
    costs = operands.costs if is_wide else operands.costs.mT
    shorter, longer = costs.shape[1:]
    shapes = (problems, shorter), (problems, longer), (problems, _workspace(shorter, longer), 2)
    column_of, row_of, _ = extension.call("dcn_assign", costs, results=[(shape, jnp.int32) for shape in shapes])
    return column_of if is_wide else row_of


def _workspace(shorter: int, longer: int) -> int:
    """The words of 64 bits that a problem needs, as `AssignmentSizes` of lib/assignment/assignment.h has them."""
    return 3 * longer + shorter


def cotangent(plans: Plans, operands: Operands[jax.Array], ct: jax.Array, *, spec: None) -> dict[str, jax.Array]:
    return {"costs": jnp.zeros_like(operands.costs)}


def flops(computation: str, operands: Operands[Shaped], spec: None) -> int:
    """A comparison for each cost: how often it is read depends on the costs."""
    return math.prod(operands.costs.shape) if computation == "forward" else 0


def user_names(spec: None) -> dict[str, str]:
    return {"costs": "cost"}


assignment = Primitive(
    Operator[None](
        "linear_sum_assignment",
        Definition(Operands, result, reference, shared={}, linear=()),
        Kernels(plan, forward, cotangent, flops),
        Dimensions(axes),
        user_names,
    )
)
