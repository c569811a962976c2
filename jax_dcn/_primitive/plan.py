"""A request for plans, and the plan of a computation: how it is done, why, and what it costs."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from jax_dcn._primitive.chain import Step
from jax_dcn._primitive.target import Target


class Request(NamedTuple):
    """What is to be planned: the forward, if there is no step, or the derivatives of a step, for one device.

    The cotangents in `all_reduced` are summed over devices, and rounded after that. They should have a wider dtype.
    """

    step: Step | None
    spec: Any
    target: Target
    all_reduced: tuple[str, ...] = ()


def counted(count: int, unit: str) -> str:
    """For example "1 row" or "2 rows"."""
    return f"{count} {unit}{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class ComputationPlan:
    """How one computation, the forward or a gradient, is done.

    Attributes:
      computation: "forward", or the name of the operand whose gradient it is.
      path: which code runs; `KernelPlan` lists the paths.
      reason: why this path runs; empty where there is nothing to say.
      workspace_bytes: the memory it needs besides operands and result.
      choices: the parameters of the path's kernels, such as the size of a tile or the number of images at a time; None
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


Plans = dict[str, ComputationPlan]  # by computation


def by_choices(plans: Plans) -> dict[Any, list[str]]:
    """The computations for which the same was chosen, and which one executor computes together."""
    found: dict[Any, list[str]] = {}
    for name, planned in plans.items():
        found.setdefault(planned.choices, []).append(name)
    return found
