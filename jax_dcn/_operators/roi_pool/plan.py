"""Which kernels a pooling runs."""

import math
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
from jax_dcn._operators.roi_pool.arguments import OPERANDS, Spec, of_deform_psroi_pool
from jax_dcn._operators.roi_pool.functions import Options
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
    _validation.keywords("deform_psroi_pool_kernel_plan", options, Options.__annotations__)
    platform = resolve_target(platform).platform
    arrays = {"x": x, "rois": rois, "offset": offset}
    operands, spec = canonical_structs(of_deform_psroi_pool, arrays, {"output_size": output_size, **options})
    computations = ["forward", *(name for name in OPERANDS if operands[name] is not None)]
    reference_reason = why_reference_runs(platform, options.get("backend"))
    choices = (_choice(name, operands, spec, reference_reason) for name in computations)
    return KernelPlan("deform_psroi_pool", platform, tuple(choices))


def _choice(computation: str, operands: dict[str, Any], spec: Spec, reference_reason: str) -> KernelChoice:
    x, rois = operands["x"], operands["rois"]
    if computation == "rois":
        return KernelChoice("rois", "xla", "it is zero", 0)
    if reference_reason:
        bins = math.prod(rois.shape[:-1]) * math.prod(spec.output_size) * math.prod(spec.points)
        features = x.shape[-1] // math.prod(spec.group_size)
        return KernelChoice(computation, "reference", reference_reason, bins * features * rois.dtype.itemsize)
    widened = computation == "x" and x.dtype != rois.dtype
    return KernelChoice(computation, "kernel", "", math.prod(x.shape) * rois.dtype.itemsize if widened else 0)
