"""`kernel_plan`: how an operator and its gradients are computed, for users."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from jax_dcn import _validation
from jax_dcn._primitive import jax_internals, target
from jax_dcn._primitive.call_plans import bindings_of, plans_of
from jax_dcn._primitive.plan import ComputationPlan
from jax_dcn._primitive.target import Target

_GPU_PLATFORMS = ("cuda", "rocm", "oneapi")


@dataclass(frozen=True)
class KernelPlan:
    """How an operator and its gradients are computed: `print` shows a table.

    Iterating over a plan yields one `ComputationPlan` per computation. `plan["forward"]` is that of the forward, and
    `plan["x"]` that of the gradient with respect to x.

    Attributes:
      operator: the operator's name.
      platform: the platform that the plan is for, such as "cpu" or "cuda".
      computations: a `ComputationPlan` for the forward and for the gradient with respect to each operand.

    The paths:
      - "fused": kernels of the CPU sample and multiply without storing the columns (deformable convolution)
      - "im2col": kernels sample columns and XLA multiplies them, part by part (deformable convolution)
      - "kernel": one kernel does the whole computation (the other operators)
      - "xla": operations of XLA that need no kernel, such as the sum that is the gradient with respect to the bias, or
        an ordinary convolution that no kernel computes
      - "reference": the operator in `jax.numpy`
    """

    operator: str
    platform: str
    computations: tuple[ComputationPlan, ...]

    def __iter__(self) -> Iterator[ComputationPlan]:
        return iter(self.computations)

    def __getitem__(self, computation: str) -> ComputationPlan:
        found = {plan.computation: plan for plan in self}
        if computation not in found:
            raise KeyError(f"a computation must be one of {', '.join(map(repr, found))}, got {computation!r}")
        return found[computation]

    def __str__(self) -> str:
        rows = [("computation", "path", "workspace", "chosen", "why")]
        for plan in self:
            computation = plan.computation if plan.computation == "forward" else f"gradient of {plan.computation}"
            size = f"{'at least ' if plan.path == 'reference' else ''}{_size_shown(plan.workspace_bytes)}"
            rows.append((computation, plan.path, size, str(plan.choices or ""), plan.reason))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([f"{self.operator} on {self.platform}", *lines])


def kernel_plan(
    function: Callable[..., jax.Array], *arguments: Any, platform: str | None = None, **options: Any
) -> KernelPlan:
    """Which kernels an operator and its gradients run for these arguments, why, and what they need.

    Nothing is computed or compiled, and no GPU is needed. Lowering asks the same code, so the plan is what runs on one
    device if all gradients are computed together.

    Where `jit` splits a convolution over several devices, pass the shapes of one device's shard. The plan does not show
    that on a CPU the gradient with respect to an x of 16 bits takes the im2col path where it is summed over devices. On
    a CPU the plan is for the instruction set of this process, which the reason for "fused" names.

    Gradients of a convolution that are computed together share columns, or on a CPU one fused call, whose workspace
    each of them shows. A gradient that is computed by itself may have larger parts. The workspace does not include
    what converts whole arrays: the transposes of "NCHW", or offsets and masks of 16 bits. Forward mode and derivatives
    beyond the first are not planned. docs/memory.md describes the paths, the conditions of each, and how the workspace
    is computed.

    Args:
      function: an operator of jax_dcn itself, not a transformation of it, such as `jax_dcn.deform_conv2d` or
        `jax_dcn.roi_align`, or a function of one of its gradients, such as `jax_dcn.deform_conv2d_input_grad`.
      arguments: its array arguments, as arrays or `jax.ShapeDtypeStruct` objects. Only shapes and types matter.
      platform: "cpu", "cuda", "rocm", "oneapi" or "tpu", as in `jax.export`; "gpu" means "cuda". By default that of the
        default device.
      options: the keywords of `function`.

    Returns:
      A `KernelPlan`, with a `ComputationPlan` for the forward and for the gradient with respect to each array argument.
      The workspace is in bytes, without what XLA adds to rearrange columns for its products; that of "reference" is a
      lower bound, the samples of the whole batch.

    Raises:
      TypeError, ValueError: as `function`; also if it does not call exactly one operator of jax_dcn, or if the platform
        is not a string, or unknown.
      RuntimeError: the kernels would run, and the platform has a device here, but jax_dcn was built without them.

    Example:
      >>> import jax, jax.numpy as jnp, jax_dcn
      >>> x = jax.ShapeDtypeStruct((16, 64, 64, 96), jnp.bfloat16)
      >>> offset = jax.ShapeDtypeStruct((16, 64, 64, 18), jnp.float32)
      >>> weight = jax.ShapeDtypeStruct((3, 3, 96, 60), jnp.bfloat16)
      >>> plan = jax_dcn.kernel_plan(jax_dcn.deform_conv2d, x, offset, weight, platform="cuda")
      >>> print(plan)
      deform_conv2d on cuda
      computation         path    workspace  chosen              why
      forward             im2col  54.0 MiB   8 images at a time
      gradient of x       im2col  65.5 MiB   8 images at a time
      gradient of offset  im2col  54.0 MiB   8 images at a time
      gradient of weight  im2col  54.0 MiB   8 images at a time
      >>> plan["x"].path, plan["forward"].flops
      ('im2col', 7247757312)
      >>> rois = jax.ShapeDtypeStruct((512, 5), jnp.float32)
      >>> print(jax_dcn.kernel_plan(jax_dcn.roi_align, x, rois, output_size=7, platform="cuda"))
      roi_align on cuda
      computation       path    workspace  chosen  why
      forward           kernel  0 B
      gradient of x     kernel  24.0 MiB           its sums are float32
      gradient of rois  xla     0 B                it is zero
    """
    chosen_target = _resolve_target(platform)
    traced = {name: value for name, value in options.items() if isinstance(value, jax.ShapeDtypeStruct)}
    static = {name: value for name, value in options.items() if name not in traced}
    bindings = bindings_of(partial(function, **static), *arguments, **traced)
    name = getattr(function, "__name__", repr(function))
    if len(bindings) != 1:
        raise ValueError(f"function must call one operator of jax_dcn, got {name}, which calls {len(bindings)}")
    return KernelPlan(name, chosen_target.platform, plans_of(bindings[0], chosen_target))


def platform_of(device: jax.Device) -> str:
    """The platform that a computation on this device is lowered for."""
    if device.platform != "gpu":
        return device.platform
    version = device.client.platform_version.lower()
    return next((name for name in _GPU_PLATFORMS if name in version), "gpu")


def _resolve_target(platform: Any) -> Target:
    """The target that a user's argument means, or that of the default device."""
    device = None
    if platform is None:
        default = jax_internals.config("jax_default_device")
        device = default if isinstance(default, jax.Device) else jax.devices(default)[0]
        platform = platform_of(device)
    if not isinstance(platform, str):
        raise TypeError(f"platform must be None or a string such as 'cpu' or 'cuda', got {platform!r}")
    _validation.choice("platform", platform, ("cpu", "gpu", "tpu", *_GPU_PLATFORMS))
    platform = "cuda" if platform == "gpu" else platform
    return target.of_device(platform, device or target.local_device(platform))


def _size_shown(count: Any) -> str:
    if not isinstance(count, int) or count < 2**10:  # a symbolic number of bytes has no order
        return f"{count} B"
    unit, size = ("MiB", 2**20) if count >= 2**20 else ("KiB", 2**10)
    return f"{count / size:.1f} {unit}"
