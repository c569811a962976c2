"""Which kernels a deformable convolution runs."""

import math
from typing import Any, Unpack

import jax
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._operators.deform_conv import fused, paths, plain
from jax_dcn._operators.deform_conv.arguments import Spec, canonicalize
from jax_dcn._operators.deform_conv.functions import Options
from jax_dcn._operators.kernel_plan import (
    KernelChoice,
    KernelPlan,
    canonical_structs,
    flat_struct,
    resolve_platform,
    why_reference_runs,
)
from jax_dcn._types import Shaped

Operand = ArrayLike | jax.ShapeDtypeStruct


def kernel_plan(
    x: Operand,
    offset: Operand,
    weight: Operand,
    bias: Operand | None = None,
    mask: Operand | None = None,
    *,
    platform: str | None = None,
    **options: Unpack[Options],
) -> KernelPlan:
    """Which kernels `deform_conv2d` and its gradients run for these arguments, why, and the workspace they need.

    Nothing is computed or compiled, and no GPU is needed. The compiler asks the same code, so the plan is what runs.

    The plan is for one device: where `jit` splits a convolution over several, pass the shapes of one device's shard.
    Each gradient is planned by itself. Gradients on the plain path that are computed together share their columns, in
    smaller chunks. The workspace does not include what converts whole arrays: the transposes of "NCHW", or offsets and
    masks of 16 bits. Forward mode, which takes the plain path, and derivatives beyond the first are not planned.
    docs/memory.md describes the paths, the conditions of each, and how the workspace is computed.

    Args:
      x, offset, weight, bias, mask: the arrays of `deform_conv2d`, or `jax.ShapeDtypeStruct` objects. Only shapes and
        types matter.
      platform: "cpu", "cuda", "rocm", "oneapi" or "tpu", as in `jax.export`; "gpu" means "cuda". By default that of the
        default device.
      options: the keywords of `deform_conv2d`.

    Returns:
      A `KernelPlan`, with a `KernelChoice` for the forward and for the gradient of each operand that is present. The
      workspace of "fused" and "plain" is in bytes, without what XLA adds to rearrange columns for its products; that of
      "reference" is a lower bound, the columns of the whole batch.

    Raises:
      TypeError, ValueError: as `deform_conv2d`; also if the platform is not a string, or unknown.
      RuntimeError: the kernels would run, and the platform has a device here, but jax_dcn was built without them.

    Example:
      >>> import jax, jax.numpy as jnp, jax_dcn
      >>> x = jax.ShapeDtypeStruct((16, 64, 64, 24), jnp.bfloat16)
      >>> offset = jax.ShapeDtypeStruct((16, 64, 64, 18), jnp.float32)
      >>> weight = jax.ShapeDtypeStruct((3, 3, 24, 64), jnp.bfloat16)
      >>> plan = jax_dcn.kernel_plan(x, offset, weight, platform="cuda")
      >>> print(plan)
      deform_conv2d on cuda
      computation         path   workspace  why no faster path
      forward             fused  27.0 KiB
      gradient of x       plain  64.8 MiB   x has 24 channels; the fused gradients need at least 32
      gradient of offset  plain  54.0 MiB   x has 24 channels; the fused gradients need at least 32
      gradient of weight  plain  27.0 MiB   x has 24 channels; the fused gradients need at least 32
      >>> plan["x"].path
      'plain'
    """
    _validation.keywords("kernel_plan", options, Options.__annotations__)
    platform = resolve_platform(platform)
    arrays = {"x": x, "offset": offset, "weight": weight, "bias": bias, "mask": mask}
    operands, spec = canonical_structs(canonicalize, arrays, options)
    operands |= {name: flat_struct(operands[name], 3) for name in ("x", "offset", "mask")}
    computations = [
        "forward",
        *(name for name in ("x", "offset", "mask", "weight", "bias") if operands[name] is not None),
    ]
    reference_reason = why_reference_runs(platform, options.get("backend"))
    choices = (_choice(name, operands, spec, platform, reference_reason) for name in computations)
    return KernelPlan("deform_conv2d", platform, tuple(choices))


def _choice(
    computation: str, operands: dict[str, Any], spec: Spec, platform: str, reference_reason: str
) -> KernelChoice:
    x, offset, weight = (operands[name] for name in ("x", "offset", "weight"))
    if reference_reason and computation != "bias":
        return KernelChoice(computation, "reference", reference_reason, _columns_bytes(x, offset, weight))
    if computation == "forward":
        path, reason = paths.of_forward(x, offset, weight, spec, platform)
    else:
        path, reason = paths.of_cotangent(computation, x, offset, weight, spec, platform)
    size = 0
    if path == "fused":
        size = fused.workspace_bytes(computation, x, offset, weight, spec)
    elif path == "plain":
        size = plain.workspace_bytes(computation, x, offset, weight, platform)
    return KernelChoice(computation, path, reason, size)


def _columns_bytes(x: Shaped, offset: Shaped, weight: Shaped) -> int:
    """Those of the whole batch, in the type of sums."""
    return math.prod(offset.shape[:3]) * math.prod(weight.shape[:2]) * x.shape[-1] * offset.dtype.itemsize
