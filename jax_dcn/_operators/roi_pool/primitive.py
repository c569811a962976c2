"""The operator as a JAX primitive, from the reference and the kernels."""

from functools import partial

import jax

from jax_dcn._operators.roi_pool import kernels, plan
from jax_dcn._operators.roi_pool.arguments import OPERANDS, Spec, check_operands
from jax_dcn._operators.roi_pool.reference import max_reference, reference
from jax_dcn._primitive.operator import Axes, Operator
from jax_dcn._types import Shaped


def result(x: Shaped, rois: Shaped, offset: Shaped | None, *, spec: Spec) -> jax.ShapeDtypeStruct:
    """The shape and type of the result; raises ValueError where the operands do not fit."""
    check_operands(x, rois, offset, spec=spec)
    features = x.shape[-1] // (spec.group_size[0] * spec.group_size[1])
    return jax.ShapeDtypeStruct((*rois.shape[:-1], *spec.output_size, features), x.dtype)


def axes(x: Shaped, rois: Shaped, offset: Shaped | None, *, spec: Spec) -> Axes:
    """The regions and the features may be sharded. The images may not: a region may lie in any of them.

    The image's channels are sharded with the features. If there are several classes, only whole classes are sharded,
    together with their offsets.
    """
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


deform_roi_pool = Operator[Spec](
    "deform_roi_pool",
    operands=OPERANDS,
    result=result,
    reference=reference,
    plan=plan.plan,
    forward=kernels.forward,
    tangent=None,
    cotangent=kernels.cotangent,
    flops=plan.flops,
    samples=plan.samples,
    axes=axes,
    keywords=lambda spec, shards: {"spec": spec},
    chunk_lengths=lambda **_: {},
    shared={},
    linear=("x",),
)


# Max pooling takes no offset. It is not linear in x, and so is an operator of its own.
deform_roi_max_pool = Operator[Spec](
    "deform_roi_max_pool",
    operands=OPERANDS[:2],
    result=partial(result, offset=None),
    reference=max_reference,
    plan=plan.max_plan,
    forward=kernels.max_forward,
    tangent=None,
    cotangent=kernels.max_cotangent,
    flops=plan.flops,
    samples=plan.max_samples,
    axes=partial(axes, offset=None),
    keywords=lambda spec, shards: {"spec": spec},
    chunk_lengths=lambda **_: {},
    shared={},
    linear=(),
)
