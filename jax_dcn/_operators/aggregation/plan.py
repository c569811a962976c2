"""Which kernels an aggregation runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import jax
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._operators.aggregation import workspace
from jax_dcn._operators.aggregation.arguments import OPERANDS, canonicalize_attention, canonicalize_dcnv3
from jax_dcn._operators.aggregation.functions import AttentionOptions, DCNv3Options, Pads
from jax_dcn._operators.kernel_plan import (
    KernelChoice,
    KernelPlan,
    canonical_structs,
    flat_struct,
    resolve_target,
    why_reference_runs,
)
from jax_dcn._types import Pair, Shaped

Operand = ArrayLike | jax.ShapeDtypeStruct


def multi_scale_deformable_attention_kernel_plan(
    value: Operand,
    sampling_locations: Operand,
    attention_weights: Operand,
    *,
    spatial_shapes: Sequence[Sequence[int]],
    platform: str | None = None,
    **options: Unpack[AttentionOptions],
) -> KernelPlan:
    """Which kernels `multi_scale_deformable_attention` and its gradients run, and the workspace they need.

    As `kernel_plan` for deformable convolution: nothing is computed, and the plan is for one device. On CPU and CUDA
    one custom call does each computation ("kernel"); on other platforms `jax.numpy` does ("reference").

    Args:
      value, sampling_locations, attention_weights: the arrays of `multi_scale_deformable_attention`, or
        `jax.ShapeDtypeStruct` objects. Only shapes and types matter.
      platform: as in `kernel_plan`.
      spatial_shapes, options: the keywords of `multi_scale_deformable_attention`.

    Returns:
      A `KernelPlan`. The workspace, in bytes, is that of the gradient of value on CUDA: the samples, sorted by
      location, of as many heads as fit 256 MiB. That of "reference" is a lower bound, all samples.

    Raises:
      TypeError, ValueError: as `multi_scale_deformable_attention`; also if the platform is not a string, or unknown.
      RuntimeError: the kernels would run, and the platform has a device here, but jax_dcn was built without them.

    Example:
      >>> import jax, jax.numpy as jnp, jax_dcn
      >>> levels = ((64, 64), (32, 32), (16, 16), (8, 8))
      >>> value = jax.ShapeDtypeStruct((2, 5440, 8, 32), jnp.bfloat16)
      >>> locations = jax.ShapeDtypeStruct((2, 5440, 8, 4, 4, 2), jnp.float32)
      >>> weights = jax.ShapeDtypeStruct((2, 5440, 8, 4, 4), jnp.float32)
      >>> plan = jax_dcn.multi_scale_deformable_attention_kernel_plan
      >>> print(plan(value, locations, weights, spatial_shapes=levels, platform="cpu"))
      multi_scale_deformable_attention on cpu
      computation                     path    workspace  why
      forward                         kernel  0 B
      gradient of value               kernel  0 B
      gradient of sampling_locations  kernel  0 B
      gradient of attention_weights   kernel  0 B
    """
    _validation.keywords("multi_scale_deformable_attention_kernel_plan", options, AttentionOptions.__annotations__)
    arrays = {"value": value, "sampling_locations": sampling_locations, "attention_weights": attention_weights}
    keywords = {"spatial_shapes": spatial_shapes, **options}
    return _plan("multi_scale_deformable_attention", canonicalize_attention, arrays, keywords, platform)


def dcnv3_kernel_plan(
    x: Operand,
    offset: Operand,
    mask: Operand,
    *,
    kernel_size: Pair,
    padding: Pads,
    groups: int,
    platform: str | None = None,
    **options: Unpack[DCNv3Options],
) -> KernelPlan:
    """Which kernels `dcnv3` and its gradients run for these arguments, and the workspace they need.

    As `multi_scale_deformable_attention_kernel_plan`.

    Args:
      x, offset, mask: the arrays of `dcnv3`, or `jax.ShapeDtypeStruct` objects. Only shapes and types matter.
      platform: as in `kernel_plan`.
      kernel_size, padding, groups, options: the keywords of `dcnv3`.

    Returns:
      A `KernelPlan`.

    Raises:
      TypeError, ValueError: as `dcnv3`; also if the platform is not a string, or unknown.
      RuntimeError: the kernels would run, and the platform has a device here, but jax_dcn was built without them.

    Example:
      >>> import jax, jax.numpy as jnp, jax_dcn
      >>> x, offset, mask = (jax.ShapeDtypeStruct((8, 56, 56, c), jnp.float32) for c in (128, 4 * 18, 4 * 9))
      >>> plan = jax_dcn.dcnv3_kernel_plan(x, offset, mask, kernel_size=3, padding=1, groups=4, platform="cpu")
      >>> plan["x"].path
      'kernel'
    """
    _validation.keywords("dcnv3_kernel_plan", options, DCNv3Options.__annotations__)
    arrays = {"x": x, "offset": offset, "mask": mask}
    keywords = {"kernel_size": kernel_size, "padding": padding, "groups": groups, **options}
    return _plan("dcnv3", canonicalize_dcnv3, arrays, keywords, platform)


def _plan(
    operator: str,
    canonicalize: Callable[..., Any],
    arrays: Mapping[str, Operand],
    keywords: Mapping[str, Any],
    platform: str | None,
) -> KernelPlan:
    """The plan of the public function `operator`, whose array arguments are, in order, the operands."""
    target = resolve_target(platform)
    structs, spec = canonical_structs(canonicalize, arrays, keywords)
    dims = spec.image_dims
    value, locations = flat_struct(structs["value"], dims + 2), flat_struct(structs["locations"], dims + 3)
    assert value is not None and locations is not None
    reference_reason = why_reference_runs(target.platform, keywords.get("backend"))

    def choice(computation: str, operand: str | None) -> KernelChoice:
        if reference_reason:
            return KernelChoice(computation, "reference", reference_reason, _samples_bytes(value, locations))
        elements = 0
        if operand == "value":
            elements = workspace.value_cotangent_elements(value, locations, spec, target)
        return KernelChoice(computation, "kernel", "", 4 * elements)

    gradients = [choice(name, operand) for name, operand in zip(arrays, OPERANDS, strict=True)]
    return KernelPlan(operator, target.platform, (choice("forward", None), *gradients))


def _samples_bytes(value: Shaped, locations: Shaped) -> Any:
    """The bytes of the reference's samples."""
    return math.prod(locations.shape[:-1]) * value.shape[-1] * locations.dtype.itemsize
