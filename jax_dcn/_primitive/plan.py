"""Plans: how each computation of an operator is done, why, and what it costs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ComputationPlan:
    """How one computation, the forward or a gradient, is done.

    Attributes:
      computation: "forward", or the name of the operand whose gradient it is.
      path: which code runs; `KernelPlan` lists the paths.
      reason: why this path runs; empty where there is nothing to say.
      workspace_bytes: the memory it needs besides operands and result.
      choices: what the path's kernels are told, such as the size of a tile or the number of images at a time; None
        where nothing is chosen. It prints as text; its attributes may change between releases.
      flops: floating-point operations. A multiply-add counts as two.
      bytes_accessed: the bytes of the operands that it reads and of its result, each counted once.
    """

    computation: str
    path: str
    reason: str = ""
    workspace_bytes: int = 0
    choices: Any = None
    flops: int = 0
    bytes_accessed: int = 0


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
      - "fused": kernels sample and multiply without storing the columns: on CUDA on tensor cores, on a CPU in the
        caches (deformable convolution)
      - "im2col": kernels sample columns and XLA multiplies them, chunk by chunk (deformable convolution)
      - "kernel": one kernel does the whole computation (the other operators)
      - "xla": operations of XLA that need no kernel, such as the sum that is the gradient with respect to the bias
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
            size = f"{'at least ' if plan.path == 'reference' else ''}{_shown(plan.workspace_bytes)}"
            rows.append((computation, plan.path, size, str(plan.choices or ""), plan.reason))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([f"{self.operator} on {self.platform}", *lines])


def _shown(count: Any) -> str:
    if not isinstance(count, int) or count < 2**10:  # a symbolic number of bytes has no order
        return f"{count} B"
    unit, size = ("MiB", 2**20) if count >= 2**20 else ("KiB", 2**10)
    return f"{count / size:.1f} {unit}"
