"""The operator as a JAX primitive: its shapes, its sharding, its kernels and what they need.

The kernels are one custom call for each computation. All their arrays have one batch dimension, and the handlers are in
lib/sampling/handlers.cc.
"""

import math
from collections.abc import Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp

from jax_dcn._operators.sampling.arguments import Operands, check_operands
from jax_dcn._operators.sampling.geometry import Fold, Method, Outside, Spec, Units
from jax_dcn._operators.sampling.reference import reference
from jax_dcn._operators.scatter import TAP_RECORD_SIZE, Table, plan_sums
from jax_dcn._primitive import extension
from jax_dcn._primitive.operator import Axes, Definition, Dimensions, Kernels, Operator
from jax_dcn._primitive.parts import part_length
from jax_dcn._primitive.plan import ComputationPlan, Plans, Request
from jax_dcn._primitive.primitive import Primitive
from jax_dcn._primitive.target import Target
from jax_dcn._types import Shaped


def result(operands: Operands[Shaped], spec: Spec) -> jax.ShapeDtypeStruct:
    """The shape and type of the result; raises ValueError where the operands do not fit."""
    check_operands(operands, spec)
    x, locations = operands
    return jax.ShapeDtypeStruct((*locations.shape[:-2], spec.points(locations), x.shape[-1]), x.dtype)


def axes(operands: Operands[Shaped], spec: Spec) -> Axes:
    """The points and the channels may be sharded. The pixels may not: a sample may read any."""
    return Axes(
        operands={
            "x": (*[None] * spec.dims, "channels"),
            "locations": (None, "points") if spec.planar else ("points", None),
        },
        result=("points", "channels"),
        sizes={"points": spec.points(operands.locations), "channels": operands.x.shape[-1]},
    )


def plan(request: Request, operands: Operands[Shaped]) -> Plans:
    """The plans by computation."""
    (x, locations), spec = operands, request.spec
    names = ("forward",) if request.step is None else request.step.arguments
    plans = {name: ComputationPlan(name, "kernel") for name in names}
    if "x" in names:
        plans["x"] = plan_sums(request, "x", x, tap_table(x.shape, locations, spec), unit="image", total=x.shape[0])
    if "locations" in names and spec.taps == 1:
        plans["locations"] = ComputationPlan("locations", "xla", "it is zero")
    return plans


def tap_table(x_shape: Sequence[Any], locations: Shaped, spec: Spec) -> Table:
    """The taps of the samples of an image, by pixel."""
    return Table(spec.points(locations) * spec.sorted_taps, math.prod(x_shape[1:-1]), TAP_RECORD_SIZE, locations.dtype)


def part_lengths(operands: Operands[Shaped], *, target: Target) -> dict[str, Any]:
    """The lengths of the parts of points in which derivatives of the reference are evaluated."""
    x, locations = operands
    return {"batch": 1, "points": part_length(x.shape[-1] * locations.dtype.itemsize)}


def flops(computation: str, operands: Operands[Shaped], spec: Spec) -> int:
    """A multiply-add for each channel of each pixel that a sample reads."""
    if computation == "locations" and spec.taps == 1:
        return 0
    return 2 * spec.taps**spec.dims * _sampled_channels(operands, spec)


def sample_bytes(operands: Operands[Shaped], spec: Spec) -> int:
    """The bytes of the reference's samples."""
    return _sampled_channels(operands, spec) * operands.locations.dtype.itemsize


def _sampled_channels(operands: Operands[Shaped], spec: Spec) -> int:
    x, locations = operands
    return math.prod(locations.shape) // spec.dims * x.shape[-1]


def user_names(spec: Spec) -> dict[str, str]:
    """The operands as the arguments of `map_coordinates` or of `grid_sample`."""
    return {"x": "input", "locations": "coordinates"} if spec.planar else {"locations": "grid"}


def forward(plans: Plans, operands: Operands[jax.Array], *, spec: Spec) -> jax.Array:
    return sample(*operands, spec)


def cotangent(plans: Plans, operands: Operands[jax.Array], ct: jax.Array, *, spec: Spec) -> dict[str, jax.Array]:
    """The planned cotangents: that of x in the planned dtype, that of the locations in theirs."""
    x, locations = operands
    out = {}
    if "x" in plans:
        sums = plans["x"].choices
        out["x"] = x_cotangent(locations, ct, spec, [(x.shape, sums.dtype), *sums.sorted_results])
    if "locations" in plans:
        zero = plans["locations"].path == "xla"
        out["locations"] = jnp.zeros_like(locations) if zero else locations_cotangent(*operands, ct, spec)
    return out


def sample(x: jax.Array, locations: jax.Array, spec: Spec) -> jax.Array:
    """The samples [n, points, C], of x's type."""
    shape = (x.shape[0], spec.points(locations), x.shape[-1])
    (out,) = _call("dcn_sampling", x, locations, spec=spec, results=[(shape, x.dtype)])
    return out


def x_cotangent(
    locations: jax.Array, d_out: jax.Array, spec: Spec, results: Sequence[extension.ResultType]
) -> jax.Array:
    """The cotangent of x [n, *sizes, C], the first of the results. The others are those of a sort, on a GPU."""
    d_x, *_ = _call("dcn_sampling_x_cotangent", locations, d_out, spec=spec, results=results)
    return d_x


def locations_cotangent(x: jax.Array, locations: jax.Array, d_out: jax.Array, spec: Spec) -> jax.Array:
    """The cotangent of the locations, of their shape and type."""
    results = [(locations.shape, locations.dtype)]
    (d_locations,) = _call("dcn_sampling_locations_cotangent", x, locations, d_out, spec=spec, results=results)
    return d_locations


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
