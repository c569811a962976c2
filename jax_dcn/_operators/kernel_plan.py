"""What a kernel plan is: for each computation of an operator, the path that it takes, and why."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from jax_dcn import _validation
from jax_dcn._primitive import extension, jax_internals, target
from jax_dcn._primitive.operator import why_reference
from jax_dcn._primitive.target import Target

_GPU_PLATFORMS = ("cuda", "rocm", "oneapi")


@dataclass(frozen=True)
class KernelChoice:
    """How one computation, the forward or a gradient, is done.

    Attributes:
      computation: "forward", or the name of the operand whose gradient it is.
      path: which code runs; `KernelPlan` lists the paths.
      reason: why this path runs; empty where there is nothing to say.
      workspace_bytes: the memory it needs besides operands and result.
      partial_sums: how many arrays of the shape of the result are added up; more than one only in the fused gradient of
        the weight of a convolution on CUDA, where they are the workspace.
    """

    computation: str
    path: str
    reason: str
    workspace_bytes: int
    partial_sums: int = 1


@dataclass(frozen=True)
class KernelPlan:
    """Which kernels an operator runs: `print` shows a table.

    Iterating over a plan yields one `KernelChoice` per computation. `plan["forward"]` is that of the forward, and
    `plan["x"]` that of the gradient of x.

    Attributes:
      operator: the operator's name.
      platform: the platform that the plan is for, such as "cpu" or "cuda".
      choices: a `KernelChoice` for the forward and for the gradient of each operand that is present.

    The paths:
      - "fused": kernels sample and multiply without storing the columns: on CUDA on tensor cores, on a CPU in the
        caches (deformable convolution)
      - "plain": kernels sample columns and XLA multiplies them, chunk by chunk (deformable convolution)
      - "kernel": one kernel does the whole computation (pooling)
      - "xla": operations of XLA that need no kernel, such as the sum that is the gradient of the bias
      - "reference": the operator in `jax.numpy`
    """

    operator: str
    platform: str
    choices: tuple[KernelChoice, ...]

    def __iter__(self) -> Iterator[KernelChoice]:
        return iter(self.choices)

    def __getitem__(self, computation: str) -> KernelChoice:
        found = {choice.computation: choice for choice in self.choices}
        if computation not in found:
            raise KeyError(f"a computation must be one of {', '.join(map(repr, found))}, got {computation!r}")
        return found[computation]

    def __str__(self) -> str:
        rows = [("computation", "path", "workspace", "why")]
        for choice in self.choices:
            computation = choice.computation if choice.computation == "forward" else f"gradient of {choice.computation}"
            size = f"{'at least ' if choice.path == 'reference' else ''}{_shown(choice.workspace_bytes)}"
            size += f", {choice.partial_sums} partial sums" if choice.partial_sums > 1 else ""
            rows.append((computation, choice.path, size, choice.reason))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([f"{self.operator} on {self.platform}", *lines])


def _shown(count: Any) -> str:
    if not isinstance(count, int) or count < 2**10:  # a symbolic number of bytes has no order
        return f"{count} B"
    unit, size = ("MiB", 2**20) if count >= 2**20 else ("KiB", 2**10)
    return f"{count / size:.1f} {unit}"


def platform_of(device: jax.Device) -> str:
    """The platform that a computation on this device is lowered for."""
    if device.platform != "gpu":
        return device.platform
    version = device.client.platform_version.lower()
    return next((name for name in _GPU_PLATFORMS if name in version), "gpu")


def resolve_target(platform: str | None, compute_capability: str | None = None) -> Target:
    """The target that a user's arguments mean, or that of the default device."""
    device = None
    if platform is None:
        default = jax_internals.config(jax_internals.DEFAULT_DEVICE)
        device = default if isinstance(default, jax.Device) else jax.devices(default)[0]
        platform = platform_of(device)
    platform = _lowering_platform(platform)
    if compute_capability is None:
        return target.of_device(platform, device or target.local_device(platform))
    message = f"compute_capability must be None or a string such as '9.0', got {compute_capability!r}"
    if not isinstance(compute_capability, str):
        raise TypeError(message)
    parsed = target.compute_capability(compute_capability)
    if parsed is None:
        raise ValueError(message)
    return Target(platform, parsed)


def _lowering_platform(platform: Any) -> str:
    if not isinstance(platform, str):
        raise TypeError(f"platform must be None or a string such as 'cpu' or 'cuda', got {platform!r}")
    _validation.choice("platform", platform, ("cpu", "gpu", "tpu", *_GPU_PLATFORMS))
    return "cuda" if platform == "gpu" else platform


def why_reference_runs(platform: str, backend: Any) -> str:
    """Why the reference runs, or an empty string. Raises, as lowering does, if the kernels run and were not built."""
    reason = why_reference(platform, backend)
    if not reason:
        extension.require(platform)
    return reason


def canonical_structs(
    canonicalize: Callable[..., Any], arrays: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[dict[str, jax.ShapeDtypeStruct | None], Any]:
    """The shapes and types of the operands, and the spec, that `canonicalize(**arrays, **options)` would give."""
    structs = {name: _struct(name, array) for name, array in arrays.items()}
    specs = []

    def operands(**tracers: Any) -> Any:
        problem = canonicalize(**tracers, **options)
        specs.append(problem.spec)
        return problem.operands

    return jax.eval_shape(operands, **structs), specs[0]


def _struct(name: str, value: Any) -> jax.ShapeDtypeStruct | None:
    if value is None:
        return None
    if not isinstance(value, jax.ShapeDtypeStruct):
        value = _validation.as_array(name, value)
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def flat_struct(struct: jax.ShapeDtypeStruct | None, dimensions: int) -> jax.ShapeDtypeStruct | None:
    """The shape and type of `chunks.flat(array, dimensions)`, for an array as `struct` describes."""
    if struct is None:
        return None
    leading, rest = struct.shape[:-dimensions], struct.shape[-dimensions:]
    return jax.ShapeDtypeStruct((math.prod(leading), *rest), struct.dtype)
