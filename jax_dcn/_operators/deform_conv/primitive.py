"""The operator as a JAX primitive, from the reference and the kernels."""

import dataclasses
import math

import jax

from jax_dcn._operators.deform_conv import kernels
from jax_dcn._operators.deform_conv.arguments import OPERANDS, check_operands
from jax_dcn._operators.deform_conv.geometry import groups_and_taps
from jax_dcn._operators.deform_conv.reference import reference
from jax_dcn._primitive.operator import Axes, Operator


def result(x, offset, weight, bias, mask, *, spec):
    """The shape and type of the result; raises ValueError where the operands do not fit."""
    check_operands(x, offset, weight, bias, mask, spec=spec)
    return jax.ShapeDtypeStruct((*offset.shape[:-1], weight.shape[-1]), spec.dtype)


def axes(x, offset, weight, bias, mask, *, spec):
    """Split over devices may be the output's rows, columns and features, these by whole groups if there are some.

    With the features, then, go channels, and the offset groups if there are several.
    """
    (offset_groups, _), groups = groups_and_taps(offset, weight.shape[:2]), spec.feature_group_count
    grouped = "groups" if groups > 1 else None
    features = grouped or "features"
    positions = ("rows", "columns", grouped if offset_groups > 1 else None)
    return Axes(
        operands=((None, None, grouped), positions, (None, None, None, features), (features,), positions),
        result=("rows", "columns", features),
        sizes={
            "rows": offset.shape[-3],
            "columns": offset.shape[-2],
            "features": weight.shape[-1],
            "groups": groups if offset_groups == 1 else math.gcd(groups, offset_groups),
        },
    )


def keywords(spec, parts):
    """Those of the reference and of the kernels, on a device that has these parts."""
    if "groups" in parts:
        spec = dataclasses.replace(spec, feature_group_count=spec.feature_group_count // parts["groups"].parts)
    return {"spec": spec, "origin": tuple(parts[name].start if name in parts else 0 for name in ("rows", "columns"))}


deform_conv = Operator(
    "deform_conv",
    operands=len(OPERANDS),
    result=result,
    reference=reference,
    forward=kernels.forward,
    cotangent=kernels.cotangent,
    axes=axes,
    keywords=keywords,
    shared={OPERANDS.index("weight"): 4, OPERANDS.index("bias"): 1},
    linear=(OPERANDS.index("x"), OPERANDS.index("weight"), OPERANDS.index("mask")),
)
