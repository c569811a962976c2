"""The operator by kernels: one custom call each for the result and for the cotangents of x and offset."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jax_dcn._operators.roi_pool import custom_calls
from jax_dcn._operators.roi_pool.arguments import Operands, Spec
from jax_dcn._primitive.plan import ComputationPlan

Plans = Mapping[str, ComputationPlan]


def forward(plans: Plans, operands: Operands[jax.Array], *, spec: Spec) -> jax.Array:
    return custom_calls.pool(*operands, spec)


def cotangent(plans: Plans, operands: Operands[jax.Array], ct: jax.Array, *, spec: Spec) -> dict[str, jax.Array]:
    """The cotangents in the dtype of the sums, whether they are all-reduced or not."""
    x, rois, offset = operands
    out = {}
    if "x" in plans:
        out["x"] = custom_calls.input_cotangent(rois, ct, offset, spec, shape=x.shape)
    if "rois" in plans:
        out["rois"] = jnp.zeros_like(rois)
    if offset is not None and "offset" in plans:
        out["offset"] = custom_calls.offset_cotangent(x, rois, ct, offset, spec)
    return out


def max_forward(plans: Plans, operands: Operands[jax.Array], *, spec: Spec) -> jax.Array:
    return custom_calls.max_pool(operands.x, operands.rois, spec)


def max_cotangent(plans: Plans, operands: Operands[jax.Array], ct: jax.Array, *, spec: Spec) -> dict[str, jax.Array]:
    """The cotangents in the dtype of the sums, whether they are all-reduced or not."""
    x, rois, _ = operands
    out = {}
    if "x" in plans:
        argmax = custom_calls.max_pool_argmax(x, rois, spec)
        out["x"] = custom_calls.max_pool_input_cotangent(rois, ct, argmax, spec, shape=x.shape)
    if "rois" in plans:
        out["rois"] = jnp.zeros_like(rois)
    return out
