"""Says what the kernels of a pooling and of its gradients need. Nothing is chosen."""

import math

from jax_dcn._operators.roi_pool.arguments import Operands, Spec
from jax_dcn._primitive.operator import Request
from jax_dcn._primitive.plan import ComputationPlan
from jax_dcn._types import Shaped


def plan(request: Request, operands: Operands[Shaped]) -> dict[str, ComputationPlan]:
    """The plans by computation: one custom call each."""
    return _plans(request, operands, argmax_bytes=0)


def max_plan(request: Request, operands: Operands[Shaped]) -> dict[str, ComputationPlan]:
    """As `plan`, for max pooling, whose gradient also needs the row and the column of the maximum of each bin."""
    argmax_bytes = 2 * 4 * _bins(operands.rois, request.spec) * operands.x.shape[-1]
    return _plans(request, operands, argmax_bytes=argmax_bytes)


def _plans(request: Request, operands: Operands[Shaped], argmax_bytes: int) -> dict[str, ComputationPlan]:
    x, rois, _ = operands
    names = ("forward",) if request.step is None else request.step.arguments
    plans = {name: ComputationPlan(name, "kernel") for name in names}
    if "rois" in names:
        plans["rois"] = ComputationPlan("rois", "xla", "it is zero")
    if "x" in names:
        sums = 0 if x.dtype == rois.dtype else math.prod(x.shape) * rois.dtype.itemsize
        reason = f"its sums are {rois.dtype}" if sums else ""
        plans["x"] = ComputationPlan("x", "kernel", reason, sums + argmax_bytes)
    return plans


def flops(computation: str, operands: Operands[Shaped], spec: Spec) -> int:
    """Eight for each channel of each sampling point; an adaptive number of points counts as 2 along an axis."""
    if computation == "rois":
        return 0
    points = math.prod(count or 2 for count in spec.points)
    return 8 * _bins(operands.rois, spec) * points * (operands.x.shape[-1] // math.prod(spec.group_size))


def samples(operands: Operands[Shaped], spec: Spec) -> int:
    """The bytes of the reference's samples. An adaptive number of points makes profiles instead."""
    x, rois, _ = operands
    points = math.prod(spec.points) * (x.shape[-1] // math.prod(spec.group_size)) if all(spec.points) else x.shape[-3]
    return _bins(rois, spec) * points * rois.dtype.itemsize


def max_samples(operands: Operands[Shaped], spec: Spec) -> int:
    """The reference finds the maximum bin by bin."""
    return 0


def _bins(rois: Shaped, spec: Spec) -> int:
    return math.prod(rois.shape[:-1]) * math.prod(spec.output_size)
