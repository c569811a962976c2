"""The operator as a JAX primitive: its shapes, its sharding, its kernels and what they need.

The kernels are one custom call for each computation. All their arrays have one batch dimension, and the handlers are in
lib/sampling/handlers.cc.
"""

import math
from collections.abc import Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp

from jax_dcn._operators.sampling.arguments import Operands, check_operands, num_points
from jax_dcn._operators.sampling.geometry import Fold, Method, Outside, Spec, Units
from jax_dcn._operators.sampling.reference import reference
from jax_dcn._operators.scatter import TAP_RECORD_SIZE, Table, plan_sums
from jax_dcn._primitive import extension
from jax_dcn._primitive.operator import Axes, Definition, Dimensions, Kernels, Operator
from jax_dcn._primitive.partition import Names
from jax_dcn._primitive.parts import part_length
from jax_dcn._primitive.plan import ComputationPlan, Plans, Request
from jax_dcn._primitive.primitive import Primitive
from jax_dcn._primitive.target import Target
from jax_dcn._types import Shaped


def result(operands: Operands[Shaped], spec: Spec) -> jax.ShapeDtypeStruct:
    """The shape and type of the result; raises ValueError where the operands do not fit."""
    check_operands(operands, spec)
    x = operands.x
    return jax.ShapeDtypeStruct((*x.shape[: -spec.dims - 1], num_points(operands), x.shape[-1]), x.dtype)


def axes(operands: Operands[Shaped], spec: Spec) -> Axes:
    """The points and the channels may be sharded. The pixels may not: a sample may read any."""
    located: Names = ("points",) if spec.planar else ("points", None)
    return Axes(
        operands={"x": (*[None] * spec.dims, "channels")} | dict.fromkeys(operands.located, located),
        result=("points", "channels"),
        sizes={"points": num_points(operands), "channels": operands.x.shape[-1]},
    )


def plan(request: Request, operands: Operands[Shaped]) -> Plans:
    """The plans by computation."""
    x, spec = operands.x, request.spec
    names = ("forward",) if request.step is None else request.step.arguments
    plans = {name: ComputationPlan(name, "kernel") for name in names}
    if "x" in names:
        table = tap_table(x.shape, num_points(operands), _dtype_of_locations(operands), spec)
        plans["x"] = plan_sums(request, "x", x, table, unit="image", total=x.shape[0])
    if spec.taps == 1:
        plans |= {name: ComputationPlan(name, "xla", "it is zero") for name in names if name in operands.located}
    return plans


def tap_table(x_shape: Sequence[Any], points: int, dtype: Any, spec: Spec) -> Table:
    """The taps of the samples of an image, by pixel. dtype: that of the locations."""
    return Table(points * spec.sorted_taps, math.prod(x_shape[1:-1]), TAP_RECORD_SIZE, dtype)


def _dtype_of_locations(operands: Operands[Shaped]) -> Any:
    return next(iter(operands.located.values())).dtype


def part_lengths(operands: Operands[Shaped], *, target: Target) -> dict[str, Any]:
    """The lengths of the parts of points in which derivatives of the reference are evaluated."""
    return {"batch": 1, "points": part_length(operands.x.shape[-1] * _dtype_of_locations(operands).itemsize)}


def flops(computation: str, operands: Operands[Shaped], spec: Spec) -> int:
    """A multiply-add for each channel of each pixel that a sample reads, which all coordinates share."""
    located = computation in operands.located
    if located and spec.taps == 1:
        return 0
    total = 2 * spec.taps**spec.dims * _sampled_channels(operands, spec)
    return total // len(operands.located) if located else total


def sample_bytes(operands: Operands[Shaped], spec: Spec) -> int:
    """The bytes of the reference's samples."""
    return _sampled_channels(operands, spec) * _dtype_of_locations(operands).itemsize


def _sampled_channels(operands: Operands[Shaped], spec: Spec) -> int:
    x = operands.x
    return math.prod(x.shape[: -spec.dims - 1]) * num_points(operands) * x.shape[-1]


def user_names(spec: Spec) -> dict[str, str]:
    """The operands as the arguments of `map_coordinates` or of `grid_sample`."""
    if not spec.planar:
        return {"locations": "grid"}
    return {"x": "input"} | {f"along_{axis}": f"coordinates[{axis}]" for axis in range(spec.dims)}


def forward(plans: Plans, operands: Operands[jax.Array], *, spec: Spec) -> jax.Array:
    return sample(operands.x, [*operands.located.values()], spec)


def cotangent(plans: Plans, operands: Operands[jax.Array], ct: jax.Array, *, spec: Spec) -> dict[str, jax.Array]:
    """The planned cotangents: that of x in the planned dtype, that of the locations in theirs."""
    x, located = operands.x, operands.located
    out = {}
    if "x" in plans:
        sums = plans["x"].choices
        out["x"] = x_cotangent([*located.values()], ct, spec, [(x.shape, sums.dtype), *sums.sorted_results])
    planned = [name for name in located if name in plans]
    if planned and plans[planned[0]].path == "xla":
        out |= {name: jnp.zeros_like(located[name]) for name in planned}
    elif planned:
        found = dict(zip(located, locations_cotangent(x, [*located.values()], ct, spec), strict=True))
        out |= {name: found[name] for name in planned}
    return out


# Below, `located` is the locations [n, points, dims], or for a planar spec the coordinates [n, points] along each axis.


def sample(x: jax.Array, located: Sequence[jax.Array], spec: Spec) -> jax.Array:
    """The samples [n, points, C], of x's type."""
    shape = (*located[0].shape[:2], x.shape[-1])
    (out,) = _call("dcn_sampling", x, *located, spec=spec, results=[(shape, x.dtype)])
    return out


def x_cotangent(
    located: Sequence[jax.Array], d_out: jax.Array, spec: Spec, results: Sequence[extension.ResultType]
) -> jax.Array:
    """The cotangent of x [n, *sizes, C], the first of the results. The others are those of a sort, on a GPU."""
    d_x, *_ = _call("dcn_sampling_x_cotangent", d_out, *located, spec=spec, results=results)
    return d_x


def locations_cotangent(
    x: jax.Array, located: Sequence[jax.Array], d_out: jax.Array, spec: Spec
) -> Sequence[jax.Array]:
    """The cotangents of the located arrays, of their shapes and types."""
    results = [(array.shape, array.dtype) for array in located]
    return _call("dcn_sampling_locations_cotangent", x, d_out, *located, spec=spec, results=results)


def _call(name: str, *operands: jax.Array, spec: Spec, results: Sequence[extension.ResultType]) -> Sequence[jax.Array]:
    # The enumerations of lib/sampling/geometry.h have the order of these types.
    types = {"method": Method, "units": Units, "fold": Fold, "outside": Outside}
    numbers = {field: get_args(names).index(getattr(spec, field)) for field, names in types.items()}
    return extension.call(name, *operands, results=results, **numbers, planar=spec.planar)


deform_sampling = Primitive(
    Operator[Spec](
        "deform_sampling",
        Definition(Operands, result, reference, shared={}, linear=("x",)),
        Kernels(plan, forward, cotangent, flops),
        Dimensions(axes, part_lengths=part_lengths, sample_bytes=sample_bytes),
        user_names,
    )
)
