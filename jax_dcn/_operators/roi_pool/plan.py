"""Which kernels a pooling runs."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import jax
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._operators.kernel_plan import (
    KernelChoice,
    KernelPlan,
    canonical_structs,
    resolve_target,
    why_reference_runs,
)
from jax_dcn._operators.roi_pool.arguments import (
    OPERANDS,
    Problem,
    Spec,
    of_deform_psroi_pool,
    of_deform_roi_pool,
    of_ps_roi_align,
    of_roi_align,
)
from jax_dcn._operators.roi_pool.functions import DeformRoiPoolOptions, Options, PsRoiAlignOptions, RoiAlignOptions
from jax_dcn._types import Pair

Operand = ArrayLike | jax.ShapeDtypeStruct


def deform_psroi_pool_kernel_plan(
    x: Operand,
    rois: Operand,
    offset: Operand | None = None,
    *,
    output_size: Pair,
    platform: str | None = None,
    **options: Unpack[Options],
) -> KernelPlan:
    """Which kernels `deform_psroi_pool` and its gradients run for these arguments, and the workspace they need.

    As `kernel_plan` for deformable convolution: nothing is computed, and the plan is for one device. On CPU and CUDA
    one kernel does each computation ("kernel"); on other platforms `jax.numpy` does ("reference").

    Args:
      x, rois, offset: the arrays of `deform_psroi_pool`, or `jax.ShapeDtypeStruct` objects. Only shapes and
        types matter.
      platform: as in `kernel_plan`.
      output_size, options: the keywords of `deform_psroi_pool`.

    Returns:
      A `KernelPlan`. The workspace, in bytes, is that of the gradient of x: its sums, where they are wider than x. That
      of "reference" is a lower bound, the samples of the whole batch.

    Raises:
      TypeError, ValueError: as `deform_psroi_pool`; also if the platform is not a string, or unknown.
      RuntimeError: the kernels would run, and the platform has a device here, but jax_dcn was built without them.

    Example:
      >>> import jax, jax.numpy as jnp, jax_dcn
      >>> x = jax.ShapeDtypeStruct((2, 38, 63, 256), jnp.bfloat16)
      >>> rois = jax.ShapeDtypeStruct((300, 5), jnp.float32)
      >>> print(jax_dcn.deform_psroi_pool_kernel_plan(x, rois, output_size=7, platform="cuda"))
      deform_psroi_pool on cuda
      computation       path    workspace  why
      forward           kernel  0 B
      gradient of x     kernel  4.7 MiB
      gradient of rois  xla     0 B        it is zero
    """
    arrays = {"x": x, "rois": rois, "offset": offset}
    return _plan("deform_psroi_pool", of_deform_psroi_pool, arrays, platform, {"output_size": output_size, **options})


def roi_align_kernel_plan(
    x: Operand, rois: Operand, *, output_size: Pair, platform: str | None = None, **options: Unpack[RoiAlignOptions]
) -> KernelPlan:
    """Which kernels `roi_align` and its gradient run for these arguments: as `deform_psroi_pool_kernel_plan`.

    With mode="max", the workspace of the gradient of x also has the largest point of each bin and feature.

    Example:
      >>> import jax, jax.numpy as jnp, jax_dcn
      >>> x = jax.ShapeDtypeStruct((2, 50, 68, 256), jnp.float32)
      >>> rois = jax.ShapeDtypeStruct((512, 5), jnp.float32)
      >>> print(jax_dcn.roi_align_kernel_plan(x, rois, output_size=7, platform="cuda"))
      roi_align on cuda
      computation       path    workspace  why
      forward           kernel  0 B
      gradient of x     kernel  0 B
      gradient of rois  xla     0 B        it is zero
    """
    arrays = {"x": x, "rois": rois}
    return _plan("roi_align", of_roi_align, arrays, platform, {"output_size": output_size, **options})


def ps_roi_align_kernel_plan(
    x: Operand, rois: Operand, *, output_size: Pair, platform: str | None = None, **options: Unpack[PsRoiAlignOptions]
) -> KernelPlan:
    """Which kernels `ps_roi_align` and its gradient run for these arguments: as `deform_psroi_pool_kernel_plan`."""
    arrays = {"x": x, "rois": rois}
    return _plan("ps_roi_align", of_ps_roi_align, arrays, platform, {"output_size": output_size, **options})


def deform_roi_pool_kernel_plan(
    x: Operand,
    rois: Operand,
    offset: Operand | None = None,
    *,
    output_size: Pair,
    platform: str | None = None,
    **options: Unpack[DeformRoiPoolOptions],
) -> KernelPlan:
    """Which kernels `deform_roi_pool` and its gradients run for these arguments: as `deform_psroi_pool_kernel_plan`."""
    arrays = {"x": x, "rois": rois, "offset": offset}
    return _plan("deform_roi_pool", of_deform_roi_pool, arrays, platform, {"output_size": output_size, **options})


_OPTIONS: dict[str, Any] = {
    "deform_psroi_pool": Options,
    "roi_align": RoiAlignOptions,
    "ps_roi_align": PsRoiAlignOptions,
    "deform_roi_pool": DeformRoiPoolOptions,
}


def _plan(
    operator: str,
    canonicalize: Callable[..., Problem],
    arrays: Mapping[str, Operand | None],
    platform: str | None,
    options: dict[str, Any],
) -> KernelPlan:
    known = {"output_size", *_OPTIONS[operator].__annotations__}
    _validation.keywords(f"{operator}_kernel_plan", options, known)
    platform = resolve_target(platform).platform
    operands, spec = canonical_structs(canonicalize, arrays, options)
    present = {name: operands[name] for name in OPERANDS if operands.get(name) is not None}
    reference_reason = why_reference_runs(platform, options.get("backend"))
    is_max = options.get("mode") == "max"
    choices = (_choice(name, present, spec, is_max, reference_reason) for name in ("forward", *present))
    return KernelPlan(operator, platform, tuple(choices))


def _choice(
    computation: str, operands: dict[str, Any], spec: Spec, is_max: bool, reference_reason: str
) -> KernelChoice:
    x, rois = operands["x"], operands["rois"]
    if computation == "rois":
        return KernelChoice("rois", "xla", "it is zero", 0)
    features = x.shape[-1] // math.prod(spec.group_size)
    bins = math.prod(rois.shape[:-1]) * math.prod(spec.output_size)
    if reference_reason:
        # An adaptive number of points makes profiles instead of samples, and a maximum is found bin by bin.
        samples = math.prod(spec.points) * features if all(spec.points) else x.shape[-3]
        return KernelChoice(
            computation, "reference", reference_reason, 0 if is_max else bins * samples * rois.dtype.itemsize
        )
    if computation != "x":
        return KernelChoice(computation, "kernel", "", 0)
    widened = math.prod(x.shape) * rois.dtype.itemsize if x.dtype != rois.dtype else 0
    argmax = 2 * 4 * bins * features if is_max else 0
    return KernelChoice("x", "kernel", "", widened + argmax)
