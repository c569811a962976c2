"""The plans of the fused path, which CPUs have: divisions of the work, and workspaces."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp

from jax_dcn._operators.deform_conv.problem import Problem
from jax_dcn._primitive import extension
from jax_dcn._primitive.plan import ComputationPlan, Plans, counted

_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Fused:
    """How the fused kernels divide their work."""

    workspace_size: int  # in float32 elements
    # Of gradients: partial sums of that of weight, planes of that of x that add up at a time, and tasks of all.
    num_splits: int = 0
    num_planes: int = 0
    tasks: int = 0

    def __str__(self) -> str:
        return counted(self.tasks, "task") if self.num_splits else ""


def forward(problem: Problem, reason: str) -> ComputationPlan:
    x, _, weight, spec, *_ = problem
    _, taps = problem.groups_and_taps
    size = extension.modules["cpu"].fused_forward_workspace(
        dtype=jnp.dtype(x.dtype).name,
        channels=x.shape[-1],
        features=weight.shape[-1],
        taps=taps,
        groups=spec.feature_group_count,
    )
    return _planned("forward", reason, Fused(size))


def gradients(requested: Mapping[str, str], problem: Problem) -> Plans:
    """The plans of gradients that are computed together, by the reasons for this path."""
    x, offset, weight, spec, *_ = problem
    offset_groups, taps = problem.groups_and_taps
    plan = extension.modules["cpu"].fused_cotangents_plan(
        dtype=jnp.dtype(x.dtype).name,
        x=x.shape,
        y=(*offset.shape[1:3], weight.shape[-1]),
        taps=taps,
        groups=spec.feature_group_count,
        offset_groups=offset_groups,
        is_x_requested="x" in requested,
        are_positions_requested=not {"offset", "mask"}.isdisjoint(requested),
        is_weight_requested="weight" in requested,
    )
    return {name: _planned(name, reason, Fused(**plan)) for name, reason in requested.items()}


def _planned(computation: str, reason: str, choices: Fused) -> ComputationPlan:
    return ComputationPlan(computation, "fused", reason, _FLOAT32_BYTES * choices.workspace_size, choices)
