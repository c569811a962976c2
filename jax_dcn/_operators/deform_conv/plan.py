"""Decides how a convolution and its derivatives are computed: the path of each computation, and why.

Lowering and `kernel_plan` both ask `plan`. `fused_plan` and `im2col_plan` make the plans of a path with all its
parameters, which the executors `fused` and `im2col` follow.
"""

import math
import os
from collections.abc import Collection, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jax_dcn._operators.deform_conv import fused_plan, im2col_plan
from jax_dcn._operators.deform_conv.arguments import Operands, Spec
from jax_dcn._operators.deform_conv.problem import Problem, pixel_columns
from jax_dcn._primitive import extension
from jax_dcn._primitive.plan import ComputationPlan, Plans, Request
from jax_dcn._types import Shaped

BIAS = ComputationPlan("bias", "xla", "it is a sum over the cotangent of the result, which needs no kernel")
LINEAR = ("x", "weight", "mask")  # the operands in each of which the result is linear

INSTRUCTIONS: str = extension.modules["cpu"].fused_instructions
# The fused path is faster than im2col from these limits on: benchmarks/results/2026-11-27-cpu-limits.md has both.
MIN_GROUP_CHANNELS = 4 if INSTRUCTIONS == "avx2" else 8  # with fewer in a feature group, most lanes are empty
MAX_PIXEL_SAMPLES = 768  # taps times offset groups: a thread keeps the locations of all samples of a tile


def plan(request: Request, operands: Operands[Shaped]) -> Plans:
    """The plans by computation: "forward", "tangent", or the operands whose cotangents are requested."""
    step, spec, target, all_reduced = request
    problem = Problem(operands.x, operands.offset, operands.weight, spec, target, operands.mask is not None)
    if step is None:
        return {"forward": _forward(problem)}
    if step.mode == "jvp":
        return _tangent(step.arguments, problem)
    return _cotangents(step.arguments, all_reduced, problem)


def flops(computation: str, operands: Operands[Shaped], spec: Spec) -> int:
    """The operations of the product, and two for each corner of an interpolated or scattered element of the columns."""
    x, offset, weight, _, _ = operands
    pixels = math.prod(offset.shape[:-1])
    if computation == "bias":
        return pixels * weight.shape[-1]
    columns = pixels * pixel_columns(x, weight)
    return 2 * columns * (weight.shape[-1] // spec.feature_group_count) + 2 * 2**spec.dims * columns


def sample_bytes(operands: Operands[Shaped], spec: Spec) -> int:
    """The bytes of the columns of the whole batch, in the type of sums."""
    x, offset, weight, _, _ = operands
    return math.prod(offset.shape[:-1]) * pixel_columns(x, weight) * offset.dtype.itemsize


def _forward(problem: Problem) -> ComputationPlan:
    path, reason = path_of("forward", problem)
    forward = fused_plan.forward if path == "fused" else im2col_plan.forward
    return forward(problem, reason)


def _tangent(active: Collection[str], problem: Problem) -> Plans:
    """The forward of a tangent, where the result is linear in the only active operand; else one product of tangents."""
    active = set(active) - {"bias"}
    if not active:
        return {}
    if len(active) == 1 and not active.isdisjoint(LINEAR):
        return {"forward": _forward(problem)}
    return {"tangent": im2col_plan.tangent(active, problem)}


def _cotangents(requested: Sequence[str], all_reduced: Collection[str], problem: Problem) -> Plans:
    reasons: dict[str, dict[str, str]] = {"im2col": {}, "fused": {}}
    for name in requested:
        if name == "bias":
            continue
        path, reason = path_of(name, problem, all_reduced)
        reasons[path][name] = reason
    plans: Plans = {}
    if reasons["im2col"]:
        plans |= im2col_plan.gradients(reasons["im2col"], all_reduced, problem)
    if reasons["fused"]:
        plans |= fused_plan.gradients(reasons["fused"], problem)
    if "bias" in requested:
        plans["bias"] = BIAS
    return {name: plans[name] for name in requested}


def path_of(computation: str, problem: Problem, all_reduced: Collection[str] = ()) -> tuple[str, str]:
    """The path of the forward or of a gradient, and the reason.

    It is the one that was requested, or else the faster one of those that are possible. Raises ValueError where the
    fused path was requested and is impossible.
    """
    spec, unsupported = problem.spec, unsupported_reason(computation, problem)
    if spec.path == "fused" and unsupported:
        what = "the forward" if computation == "forward" else f"the gradient of {computation}"
        raise ValueError(f"backend='fused' cannot compute {what}: {unsupported}. With backend=None it can be computed")
    if spec.path is not None:
        return spec.path, f"backend={spec.path!r} was passed"
    if unsupported:
        return "im2col", unsupported if problem.target.platform == "cpu" else ""  # elsewhere there is no choice
    slow = _slow_reason(problem) or rounded_once(computation, problem, all_reduced)
    return ("im2col", slow) if slow else ("fused", fast_reason())


def unsupported_reason(computation: str, problem: Problem) -> str:
    """Why the fused kernels cannot do it, or an empty string: the rules are in C++."""
    x, offset, weight, spec, target, _ = problem
    if target.platform != "cpu":
        return "the fused kernels run on CPUs only"
    if spec.dims == 3:
        return "the fused kernels support two spatial axes only"
    _, taps = problem.groups_and_taps
    both = spec.precision if isinstance(spec.precision, tuple) else (spec.precision,)
    is_algorithm = not all(one is None or isinstance(one, lax.Precision) for one in both)
    reason: str = extension.modules["cpu"].fused_unsupported(
        is_forward=computation == "forward",
        dtype=jnp.dtype(x.dtype).name,
        y_dtype=jnp.dtype(spec.dtype).name,
        x=_for_rules(x.shape),
        y=_for_rules((*offset.shape[1:3], weight.shape[-1])),
        taps=min(taps, 2**62),
        algorithm=", ".join(str(getattr(one, "name", one)) for one in both) if is_algorithm else "",
    )
    return reason


def _for_rules(sizes: Sequence[Any]) -> list[int]:
    """Sizes as the rules take them: -1 is a symbolic one."""
    return [min(size, 2**62) if isinstance(size, int) else -1 for size in sizes]


def _slow_reason(problem: Problem) -> str:
    """What makes the fused path slower than im2col, or an empty string."""
    if lacking := lacking_instructions():
        return lacking
    if few := few_channels(problem, MIN_GROUP_CHANNELS):
        return few
    if (count := math.prod(problem.groups_and_taps)) > MAX_PIXEL_SAMPLES:
        return f"there are {count} samples for each pixel; the fused kernels are fast up to {MAX_PIXEL_SAMPLES}"
    return ""


def few_channels(problem: Problem, least: int) -> str:
    """Why the fused kernels are slow, if they need so many channels and features of each of several groups."""
    fewest = min(problem.weight.shape[-2], problem.group_features)
    is_slow = problem.spec.feature_group_count > 1 and fewest < least
    return f"each group has {fewest} channels; the fused kernels are fast from {least} on" if is_slow else ""


def rounded_once(computation: str, problem: Problem, all_reduced: Collection[str]) -> str:
    """Why the fused kernels, which would round the terms of a sum over devices, do not compute them; or empty."""
    rounds_early = computation == "x" and "x" in all_reduced and problem.x.dtype.itemsize == 2
    return "its sum over devices is rounded once" if rounds_early else ""


def fast_reason() -> str:
    """Why the fused kernels are fast, where they are."""
    return f"the processor has {INSTRUCTIONS}"


def lacking_instructions() -> str:
    """Why the fused kernels are the portable ones, which are slow; empty where they are not."""
    if INSTRUCTIONS != "portable":
        return ""
    if not extension.modules["cpu"].has_x86_kernels:
        return "this build has no kernels for AVX2: the processor or the compiler does not support them"
    if os.environ.get("JAX_DCN_CPU_INSTRUCTIONS") == "portable":
        return "JAX_DCN_CPU_INSTRUCTIONS is portable"
    return "the processor has no AVX2, no FMA or no F16C"
