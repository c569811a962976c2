"""The operator as a JAX primitive, from the reference and the kernels."""

from functools import partial

import jax

from jax_dcn._operators.roi_pool import kernels, plan
from jax_dcn._operators.roi_pool.arguments import Operands, Spec, check_operands
from jax_dcn._operators.roi_pool.reference import max_reference, reference
from jax_dcn._primitive.operator import Axes, Operator
from jax_dcn._types import Shaped


def result(operands: Operands[Shaped], spec: Spec) -> jax.ShapeDtypeStruct:
    """The shape and type of the result; raises ValueError where the operands do not fit."""
    check_operands(operands, spec)
    x, rois, _ = operands
    features = x.shape[-1] // (spec.group_size[0] * spec.group_size[1])
    return jax.ShapeDtypeStruct((*rois.shape[:-1], *spec.output_size, features), x.dtype)


def axes(operands: Operands[Shaped], spec: Spec) -> Axes:
    """The regions and the features may be sharded. The images may not: a region may lie in any of them.

    The image's channels are sharded with the features. If there are several classes, only whole classes are sharded,
    together with their offsets.
    """
    x, rois, offset = operands
    features = x.shape[-1] // (spec.group_size[0] * spec.group_size[1])
    classes = 1 if offset is None else offset.shape[-1] // 2
    return Axes(
        operands={
            "x": (None, None, None, "features"),
            "rois": ("regions", None),
            "offset": ("regions", None, None, "features" if classes > 1 else None),
        },
        result=("regions", None, None, "features"),
        sizes={"regions": rois.shape[-2], "features": classes if classes > 1 else features},
    )


_pooling = partial(
    Operator[Spec],
    operands=Operands,
    result=result,
    tangent=None,
    flops=plan.flops,
    axes=axes,
    keywords=lambda spec, shards: {"spec": spec},
    chunk_lengths=lambda operands, target: {},
    shared={},
)

deform_roi_pool = _pooling(
    "deform_roi_pool",
    reference=reference,
    plan=plan.plan,
    forward=kernels.forward,
    cotangent=kernels.cotangent,
    samples=plan.samples,
    linear=("x",),
)

# The maximum is not linear in x.
deform_roi_max_pool = _pooling(
    "deform_roi_max_pool",
    reference=max_reference,
    plan=plan.max_plan,
    forward=kernels.max_forward,
    cotangent=kernels.max_cotangent,
    samples=plan.max_samples,
    linear=(),
)
