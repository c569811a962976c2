"""Which kernels a deformable convolution runs."""

import math
from typing import Any, Unpack

import jax
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._operators.deform_conv import cpu_fused, fused, paths, plain
from jax_dcn._operators.deform_conv.arguments import Spec, canonicalize
from jax_dcn._operators.deform_conv.functions import Options
from jax_dcn._operators.kernel_plan import (
    KernelChoice,
    KernelPlan,
    canonical_structs,
    flat_struct,
    resolve_target,
    why_reference_runs,
)
from jax_dcn._primitive.target import Target
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
    compute_capability: str | None = None,
    **options: Unpack[Options],
) -> KernelPlan:
    """Which kernels `deform_conv2d` and its gradients run for these arguments, why, and the workspace they need.

    Nothing is computed or compiled, and no GPU is needed. The compiler asks the same code, so the plan is what runs on
    one device.

    Where `jit` splits a convolution over several devices, pass the shapes of one device's shard. The plan does not show
    that on a CPU the gradient of an x of 16 bits takes the plain path where it is summed over devices. On a CPU the
    plan is for the instruction set of this process, which the reason for "fused" names.

    The workspace is planned for each gradient by itself. Gradients on the plain path that are computed together share
    their columns, in smaller chunks. On a CPU, fused gradients that are requested together run in one call, whose
    workspace is not that of any single one. The workspace does not include what converts whole arrays: the transposes
    of "NCHW", or offsets and masks of 16 bits. Forward mode, which takes the plain path, and derivatives beyond the
    first are not planned. docs/memory.md describes the paths, the conditions of each, and how the workspace is
    computed.

    Args:
      x, offset, weight, bias, mask: the arrays of `deform_conv2d`, or `jax.ShapeDtypeStruct` objects. Only shapes and
        types matter.
      platform: "cpu", "cuda", "rocm", "oneapi" or "tpu", as in `jax.export`; "gpu" means "cuda". By default that of the
        default device.
      compute_capability: of CUDA GPUs, such as "9.0", as the devices of jax have it. By default that of the default
        device, or of the GPUs that jax has initialized in this process, and otherwise "9.0". If it is passed, the plan
        is for the number of SMs of one GPU with it, which docs/performance.md names.
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
      >>> x = jax.ShapeDtypeStruct((16, 64, 64, 96), jnp.bfloat16)
      >>> offset = jax.ShapeDtypeStruct((16, 64, 64, 18), jnp.float32)
      >>> weight = jax.ShapeDtypeStruct((3, 3, 96, 60), jnp.bfloat16)
      >>> plan = jax_dcn.kernel_plan(x, offset, weight, platform="cuda", compute_capability="9.0")
      >>> print(plan)  # doctest: +ELLIPSIS
      deform_conv2d on cuda
      computation         path   workspace  why
      forward             fused  101.2 KiB  estimates for sm_90: fused ... ms, plain ... ms
      gradient of x       plain  17.1 MiB   weight has 60 output channels; the fused gradients need a multiple of 8, ...
      gradient of offset  plain  13.5 MiB   weight has 60 output channels; the fused gradients need a multiple of 8, ...
      gradient of weight  plain  54.0 MiB   weight has 60 output channels; the fused gradients need a multiple of 8, ...
      >>> plan["x"].path
      'plain'
    """
    _validation.keywords("kernel_plan", options, Options.__annotations__)
    target = resolve_target(platform, compute_capability)
    arrays = {"x": x, "offset": offset, "weight": weight, "bias": bias, "mask": mask}
    operands, spec = canonical_structs(canonicalize, arrays, options)
    operands |= {name: flat_struct(operands[name], 3) for name in ("x", "offset", "mask")}
    computations = [
        "forward",
        *(name for name in ("x", "offset", "mask", "weight", "bias") if operands[name] is not None),
    ]
    reference_reason = why_reference_runs(target.platform, options.get("backend"))
    choices = (_choice(name, operands, spec, target, reference_reason) for name in computations)
    return KernelPlan("deform_conv2d", target.platform, tuple(choices))


def _choice(
    computation: str, operands: dict[str, Any], spec: Spec, target: Target, reference_reason: str
) -> KernelChoice:
    x, offset, weight = (operands[name] for name in ("x", "offset", "weight"))
    if reference_reason and computation != "bias":
        return KernelChoice(computation, "reference", reference_reason, _columns_bytes(x, offset, weight))
    path, reason = paths.choose(computation, x, offset, weight, spec, target)
    if path == "fused" and target.platform == "cpu":
        return KernelChoice(computation, path, reason, cpu_fused.workspace_bytes(computation, x, offset, weight, spec))
    if path == "fused":
        num_splits = paths.num_splits(x, offset, weight, spec, target) if computation == "weight" else 1
        size = fused.workspace_bytes(computation, x, offset, weight, num_splits=num_splits)
        return KernelChoice(computation, path, reason, size, num_splits)
    size = plain.workspace_bytes(computation, x, offset, weight, spec, target) if path == "plain" else 0
    return KernelChoice(computation, path, reason, size)


def _columns_bytes(x: Shaped, offset: Shaped, weight: Shaped) -> int:
    """Those of the whole batch, in the type of sums."""
    return math.prod(offset.shape[:3]) * math.prod(weight.shape[:2]) * x.shape[-1] * offset.dtype.itemsize
