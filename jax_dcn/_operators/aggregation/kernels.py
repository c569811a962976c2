"""The operator by kernels: one custom call each for the result, the cotangent of value, and those of the taps."""

from collections.abc import Mapping

import jax
from jax.typing import ArrayLike

from jax_dcn._operators.aggregation import custom_calls
from jax_dcn._operators.aggregation.arguments import Operands
from jax_dcn._operators.aggregation.custom_calls import Taps
from jax_dcn._operators.aggregation.geometry import Spec
from jax_dcn._primitive.plan import ComputationPlan

Plans = Mapping[str, ComputationPlan]
Origin = tuple[ArrayLike, ArrayLike]


def forward(plans: Plans, operands: Operands[jax.Array], *, spec: Spec, origin: Origin) -> jax.Array:
    """The result of the queries from `origin` on, as many as `locations` has."""
    value, locations, weights = operands
    return custom_calls.aggregate(value, Taps(locations, weights, origin), spec)


def cotangent(
    plans: Plans, operands: Operands[jax.Array], ct: jax.Array, *, spec: Spec, origin: Origin
) -> dict[str, jax.Array]:
    """The planned cotangents, in the dtype of the sums; that of value in the planned dtype."""
    value, locations, weights = operands
    taps = Taps(locations, weights, origin)
    out = {}
    if "value" in plans:
        out["value"] = custom_calls.value_cotangent(taps, ct, spec, shape=value.shape, choices=plans["value"].choices)
    if requested := [name for name in ("locations", "weights") if name in plans]:
        out |= custom_calls.tap_cotangents(value, taps, ct, spec, requested=requested)
    return out
