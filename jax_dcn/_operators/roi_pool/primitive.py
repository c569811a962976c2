"""The operator as a JAX primitive: its shapes, its sharding, its kernels and what they need.

The kernels are one custom call for each computation. All their arrays have one batch dimension, and the handlers are in
lib/roi_pool/handlers.cc.
"""

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jax_dcn._operators.roi_pool.arguments import CONVENTIONS, Operands, Spec, check_operands
from jax_dcn._operators.roi_pool.reference import max_reference, reference
from jax_dcn._primitive import extension
from jax_dcn._primitive.operator import Axes, Definition, Dimensions, Kernels, Operator
from jax_dcn._primitive.plan import ComputationPlan, Plans, Request
from jax_dcn._primitive.primitive import Primitive
from jax_dcn._types import Shaped


def result(operands: Operands[Shaped], spec: Spec) -> jax.ShapeDtypeStruct:
    """The shape and type of the result; raises ValueError where the operands do not fit."""
    check_operands(operands, spec)
    x, rois, _ = operands
    return jax.ShapeDtypeStruct((*rois.shape[:-1], *spec.output_size, _features(x, spec)), x.dtype)


def axes(operands: Operands[Shaped], spec: Spec) -> Axes:
    """The regions and the features may be sharded. The images may not: a region may lie in any of them.

    The image's channels are sharded with the features. If there are several classes, only whole classes are sharded,
    together with their offsets.
    """
    x, rois, offset = operands
    classes = 1 if offset is None else offset.shape[-1] // 2
    return Axes(
        operands={
            "x": (None, None, None, "features"),
            "rois": ("regions", None),
            "offset": ("regions", None, None, "features" if classes > 1 else None),
        },
        result=("regions", None, None, "features"),
        sizes={"regions": rois.shape[-2], "features": classes if classes > 1 else _features(x, spec)},
    )


def plan(request: Request, operands: Operands[Shaped], *, is_max: bool = False) -> Plans:
    """The plans by computation. Nothing is chosen."""
    x, rois, _ = operands
    names = ("forward",) if request.step is None else request.step.arguments
    plans = {name: ComputationPlan(name, "kernel") for name in names}
    if "rois" in names:
        plans["rois"] = ComputationPlan("rois", "xla", "it is zero")
    if "x" in names:
        sums = 0 if x.dtype == rois.dtype else math.prod(x.shape) * rois.dtype.itemsize
        # The gradient of a maximum needs its row and column, in 32 bits.
        argmax = 2 * 4 * _bins(rois, request.spec) * x.shape[-1] if is_max else 0
        plans["x"] = ComputationPlan("x", "kernel", f"its sums are {rois.dtype}" if sums else "", sums + argmax)
    return plans


def flops(computation: str, operands: Operands[Shaped], spec: Spec) -> int:
    """Eight for each channel of each sampling point; an adaptive number of points counts as 2 along an axis."""
    if computation == "rois":
        return 0
    points = math.prod(count or 2 for count in spec.points)
    return 8 * _bins(operands.rois, spec) * points * _features(operands.x, spec)


def sample_bytes(operands: Operands[Shaped], spec: Spec) -> int:
    """The bytes of the reference's samples. An adaptive number of points makes profiles instead."""
    x, rois, _ = operands
    points = math.prod(spec.points) * _features(x, spec) if all(spec.points) else x.shape[-3]
    return _bins(rois, spec) * points * rois.dtype.itemsize


def forward(plans: Plans, operands: Operands[jax.Array], *, spec: Spec, name: str = "dcn_roi_pool") -> jax.Array:
    x, rois, offset = operands
    shape = (*rois.shape[:2], *spec.output_size, _features(x, spec))
    return _call(name, x, rois, offset, spec=spec, shape=shape, dtype=x.dtype)


def cotangent(
    plans: Plans, operands: Operands[jax.Array], ct: jax.Array, *, spec: Spec, is_max: bool = False
) -> dict[str, jax.Array]:
    """The cotangents in the dtype of the sums, whether they are all-reduced or not."""
    x, rois, offset = operands
    call = partial(_call, spec=spec, dtype=rois.dtype)
    out = {}
    if "x" in plans and is_max:
        # The row and the column of the largest point of each bin and feature: [2, n, R, out, out, C].
        argmax = _call("dcn_roi_max_pool_argmax", x, rois, spec=spec, shape=(2, *ct.shape), dtype=jnp.int32)
        out["x"] = call("dcn_roi_max_pool_x_cotangent", rois, ct, argmax, shape=x.shape)
    elif "x" in plans:
        out["x"] = call("dcn_roi_pool_x_cotangent", rois, ct, offset, shape=x.shape)
    if "rois" in plans:
        out["rois"] = jnp.zeros_like(rois)
    if offset is not None and "offset" in plans:
        out["offset"] = call("dcn_roi_pool_offset_cotangent", x, rois, ct, offset, shape=offset.shape)
    return out


def _call(name: str, *operands: jax.Array | None, spec: Spec, shape: Sequence[int], dtype: DTypeLike) -> jax.Array:
    """The custom call `name`, whose result has this shape and type."""
    (out,) = extension.call(
        name,
        *operands,
        results=[(shape, dtype)],
        output_size=spec.output_size,
        group_size=spec.group_size,
        part_size=spec.part_size,
        points=spec.points,
        convention=CONVENTIONS.index(spec.convention),
        spatial_scale=spec.spatial_scale,
        trans_std=spec.trans_std,
    )
    return out


def _features(x: Shaped, spec: Spec) -> int:
    return x.shape[-1] // math.prod(spec.group_size)


def _bins(rois: Shaped, spec: Spec) -> int:
    return math.prod(rois.shape[:-1]) * math.prod(spec.output_size)


deform_roi_pool = Primitive(
    Operator[Spec](
        "deform_roi_pool",
        Definition(Operands, result, reference, shared={}, linear=("x",)),
        Kernels(plan, forward, cotangent, flops),
        Dimensions(axes, sample_bytes=sample_bytes),
    )
)

# The maximum is not linear in x. Its reference visits one bin at a time.
deform_roi_max_pool = Primitive(
    Operator[Spec](
        "deform_roi_max_pool",
        Definition(Operands, result, max_reference, shared={}, linear=()),
        Kernels(
            plan=partial(plan, is_max=True),
            forward=partial(forward, name="dcn_roi_max_pool"),
            cotangent=partial(cotangent, is_max=True),
            flops=flops,
        ),
        Dimensions(axes),
    )
)
