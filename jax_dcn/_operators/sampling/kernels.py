"""The operator by kernels: one custom call each for the result, the cotangent of x, and that of the locations."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jax_dcn._operators.sampling import custom_calls
from jax_dcn._operators.sampling.arguments import Operands
from jax_dcn._operators.sampling.geometry import Spec
from jax_dcn._primitive.plan import ComputationPlan

Plans = Mapping[str, ComputationPlan]


def forward(plans: Plans, operands: Operands[jax.Array], *, spec: Spec) -> jax.Array:
    """The samples."""
    return custom_calls.sample(*operands, spec)


def cotangent(plans: Plans, operands: Operands[jax.Array], ct: jax.Array, *, spec: Spec) -> dict[str, jax.Array]:
    """The planned cotangents: that of x in the planned dtype, that of the locations in theirs."""
    x, locations = operands
    out = {}
    if "x" in plans:
        out["x"] = custom_calls.x_cotangent(locations, ct, spec, shape=x.shape, choices=plans["x"].choices)
    if "locations" in plans:
        zero = plans["locations"].path == "xla"
        out["locations"] = jnp.zeros_like(locations) if zero else custom_calls.locations_cotangent(*operands, ct, spec)
    return out
