"""Convolutions without offsets, which are ordinary ones: the operator, its plan, and its lowering.

On a CPU, the kernels of the fused path read the pixels where no offset moves the samples, and XLA computes what they
are slow at. On every other platform the convolution is that of XLA, which is the reference.
"""

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp

from jax_dcn._operators.deform_conv import fused, fused_plan
from jax_dcn._operators.deform_conv.arguments import GridOperands, Operands, Spec, check_grid_operands, in_one_column
from jax_dcn._operators.deform_conv.convolution import Convolution
from jax_dcn._operators.deform_conv.fused_plan import Fused
from jax_dcn._operators.deform_conv.on_grid_forms import CONVOLUTION, PRODUCT, SHIFTS, Form, convolution, wrapped
from jax_dcn._operators.deform_conv.plan import (
    BIAS,
    fast_reason,
    few_channels,
    lacking_instructions,
    path_of,
    rounded_once,
    unsupported_reason,
)
from jax_dcn._operators.deform_conv.problem import Problem
from jax_dcn._primitive.chain import Arrays
from jax_dcn._primitive.operator import Axes, Definition, Dimensions, Kernels, Operator
from jax_dcn._primitive.partition import Shard, widened
from jax_dcn._primitive.plan import ComputationPlan, Plans, Request, by_choices
from jax_dcn._primitive.primitive import Primitive
from jax_dcn._primitive.promotion import sum_dtype
from jax_dcn._primitive.target import Target
from jax_dcn._types import Shaped

# What XLA's convolution on a CPU is faster at: benchmarks/results/2026-11-27-cpu-limits.md has both sides. With fewer
# channels, rows of the fused kernels' products are short; with fewer features, gathering the rows takes longer than
# multiplying them.
MIN_CHANNELS, MIN_FEATURES = 16, 32
MIN_GROUP_SIZE = 8  # channels or features of each of several groups
MAX_SHIFTS = 64  # taps of a depthwise kernel, each of which is an operation of the program


def result(operands: GridOperands[Shaped], spec: Spec) -> jax.ShapeDtypeStruct:
    """The shape and type of the result; raises ValueError where the operands do not fit."""
    x, weight, _ = operands
    check_grid_operands(operands, spec)
    size = spec.output_size(x.shape[-spec.dims - 1 : -1], weight.shape[:-2])
    return jax.ShapeDtypeStruct((*x.shape[: -spec.dims - 1], *size, weight.shape[-1]), spec.dtype)


def axes(operands: GridOperands[Shaped], spec: Spec) -> Axes:
    """The features may be sharded; in a grouped convolution, only whole groups, with their input channels."""
    groups, space = spec.feature_group_count, [None] * spec.dims
    grouped = "groups" if groups > 1 else None
    features = grouped or "features"
    return Axes(
        operands={"x": (*space, grouped), "weight": (*space, None, features), "bias": (features,)},
        result=(*space, features),
        sizes={"features": operands.weight.shape[-1], "groups": groups},
    )


def keywords(spec: Spec, shards: Mapping[str, Shard]) -> dict[str, Any]:
    """The keywords of the reference and of the kernels on a device that has these shards."""
    if "groups" in shards:
        spec = replace(spec, feature_group_count=spec.feature_group_count // shards["groups"].num_shards)
    return {"spec": spec}


def reference(operands: GridOperands[jax.Array], *, spec: Spec) -> jax.Array:
    """XLA's convolution."""
    x, weight, bias = operands
    batch, wide = x.shape[: -spec.dims - 1], sum_dtype(x.dtype)
    x = x if len(batch) == 1 else x.reshape(math.prod(batch), *x.shape[len(batch) :])
    x, spec = _with_padding(x, spec)
    if bias is None and jnp.promote_types(x.dtype, spec.dtype) == spec.dtype:
        y = convolution(x, weight, spec, spec.dtype)
    else:  # XLA's convolution has no result that is narrower than x
        y = convolution(x, weight, spec, jnp.promote_types(wide, spec.dtype))
        y = (y if bias is None else y + bias).astype(spec.dtype)
    return y if len(batch) == 1 else y.reshape(*batch, *y.shape[1:])


def flops(computation: str, operands: GridOperands[Shaped], spec: Spec) -> int:
    count = math.prod(result(operands, spec).shape)
    return count if computation == "bias" else 2 * count * math.prod(operands.weight.shape[:-1])


def plan(request: Request, operands: GridOperands[Shaped]) -> Plans:
    """The plans by computation, on a CPU. A tangent is a sum of forwards."""
    step, spec, target, all_reduced = request
    problem = _problem(operands, spec, target)
    if step is None or step.mode == "jvp":
        return _plans(["forward"], problem)
    plans = _plans([name for name in step.arguments if name != "bias"], problem, all_reduced)
    if "bias" in step.arguments:
        plans["bias"] = BIAS
    return plans


def _problem(operands: GridOperands[Shaped], spec: Spec, target: Target) -> Problem:
    x, offset, weight, *_ = jax.eval_shape(lambda operands: _as_deformable(operands, spec).operands, operands)
    return Problem(x, offset, weight, spec.in_one_column() if spec.dims == 1 else spec, target, has_mask=False)


def _plans(computations: Sequence[str], problem: Problem, all_reduced: Collection[str] = ()) -> Plans:
    plans: Plans = {}
    fused_reasons: dict[str, str] = {}
    for name in computations:
        form, reason = _form(name, problem, all_reduced)
        if form is None:
            fused_reasons[name] = reason
        else:
            plans[name] = ComputationPlan(name, "xla", reason, choices=form)
    if "forward" in fused_reasons:
        plans["forward"] = fused_plan.forward(problem, fused_reasons["forward"])
    elif fused_reasons:
        plans |= fused_plan.gradients(fused_reasons, problem)
    return plans


def _form(computation: str, problem: Problem, all_reduced: Collection[str]) -> tuple[Form | None, str]:
    """The form in operations of XLA, or None for the fused kernels; and the reason.

    It is the fastest one on a CPU, unless the fused path was requested.
    """
    x, offset, weight, spec, *_ = problem
    *kernel_size, channels, _ = weight.shape
    groups, taps = spec.feature_group_count, math.prod(kernel_size)
    if spec.path is not None:
        return None, path_of(computation, problem)[1]
    slow = lacking_instructions() or unsupported_reason(computation, problem) or _slower_than_xla(computation, problem)
    if 0 not in (*x.shape, *offset.shape[:-1]):
        # The fused kernels multiply pairs of bfloat16, where the processor does.
        if taps == 1 and groups == 1 and not any(map(any, spec.padding)) and (slow or x.dtype.itemsize > 2):
            return PRODUCT, "the kernel has one tap"
        if channels == 1 and groups > 1 and taps <= MAX_SHIFTS:
            return SHIFTS, "each channel is convolved by itself"
    slow = slow or rounded_once(computation, problem, all_reduced)
    return (CONVOLUTION, slow) if slow else (None, fast_reason())


def _slower_than_xla(computation: str, problem: Problem) -> str:
    """What makes the fused kernels slower than XLA's convolution, or an empty string."""
    channels, features, groups = problem.weight.shape[-2], problem.group_features, problem.spec.feature_group_count
    # XLA takes seven to 390 times as long for the gradient of a weight that has several groups or few features.
    is_slow_in_xla = computation == "weight" and (groups > 1 or (features < MIN_FEATURES and channels >= MIN_CHANNELS))
    if is_slow_in_xla:
        return ""
    if groups > 1:
        return few_channels(problem, MIN_GROUP_SIZE)
    if channels < MIN_CHANNELS:
        return f"x has {channels} channels; the fused kernels are faster than XLA from {MIN_CHANNELS} on"
    if features < MIN_FEATURES:
        return f"weight has {features} output channels; the fused kernels are faster than XLA from {MIN_FEATURES} on"
    return ""


def _as_deformable(operands: GridOperands[jax.Array], spec: Spec) -> Convolution:
    """The convolution as the fused kernels take it: of images, with an offset that has no groups."""
    x, weight, bias = operands
    shape = (*result(operands, spec).shape[:-1], 0)
    deformable = Operands(x, jnp.zeros(shape, jnp.float32), weight, bias, None)
    if spec.dims == 1:
        deformable, spec = in_one_column(deformable, spec)
    return Convolution(deformable, spec, (0, 0))


def _forward(plans: Plans, operands: GridOperands[jax.Array], *, spec: Spec) -> jax.Array:
    match plans["forward"].choices:
        case Fused() as choices:
            y = fused.forward(_as_deformable(operands, spec), choices)
            return y.squeeze(-2) if spec.dims == 1 else y
        case Form() as form:
            x, weight, bias = operands
            padded, spec = _with_padding(widened(x), spec)
            y = form.forward(padded, widened(weight), spec)
            return (y if bias is None else y + bias).astype(spec.dtype)
        case choices:
            raise TypeError(f"no executor takes {choices}")


def _tangent(plans: Plans, operands: GridOperands[jax.Array], tangents: Arrays, *, spec: Spec) -> jax.Array:
    """The sum of the forwards with one tangent each, in the type of sums."""
    wide = replace(spec, dtype=sum_dtype(spec.dtype))
    terms = [
        _forward(plans, operands._replace(bias=None, **{name: tangents[name]}), spec=wide)
        for name in ("x", "weight")
        if name in tangents
    ]
    if "bias" in tangents:
        shape = result(operands, spec).shape
        terms.append(jnp.broadcast_to(tangents["bias"], shape))
    return reduce(operator.add, terms).astype(spec.dtype)


def _cotangent(plans: Plans, operands: GridOperands[jax.Array], ct: jax.Array, *, spec: Spec) -> Arrays:
    """The planned cotangents, in the types of the operands or in that of sums."""
    out: Arrays = {}
    for choices, names in by_choices(plans).items():
        match choices:
            case Fused():
                out |= _fused_cotangents(operands, ct, names, spec, choices)
            case Form():
                out |= _cotangents_by_form(choices, operands, widened(ct), names, spec)
            case None if names == ["bias"]:
                out["bias"] = ct.sum(range(ct.ndim - 1), dtype=sum_dtype(ct.dtype))
            case _:
                raise TypeError(f"no executor takes {choices} for {names}")
    return out


def _fused_cotangents(
    operands: GridOperands[jax.Array], ct: jax.Array, names: Sequence[str], spec: Spec, choices: Fused
) -> Arrays:
    of_images = jnp.expand_dims(ct, -2) if spec.dims == 1 else ct
    out = fused.cotangents(_as_deformable(operands, spec), of_images, names, choices)
    return {name: array.reshape(getattr(operands, name).shape) for name, array in out.items()}


def _cotangents_by_form(
    form: Form, operands: GridOperands[jax.Array], ct: jax.Array, names: Sequence[str], spec: Spec
) -> Arrays:
    padded, pull_back = jax.vjp(lambda x: _with_padding(x, spec)[0], widened(operands.x))
    _, padded_spec = _with_padding(operands.x, spec)
    out = form.cotangents(padded, widened(operands.weight), ct, names, padded_spec)
    return {name: pull_back(array)[0] if name == "x" else array for name, array in out.items()}


def _with_padding(x: jax.Array, spec: Spec) -> tuple[jax.Array, Spec]:
    """x with its circular padding, if it has any, and the convolution of that."""
    if not spec.circular:
        return x, spec
    return wrapped(x, spec), replace(spec, padding=((0, 0),) * spec.dims, circular=False)


_kernels = Kernels(plan, _forward, _cotangent, flops, _tangent, platforms=("cpu",))


def _primitive(dims: int) -> Primitive[Spec]:
    """The primitive for images of this number of axes."""
    shared = {"weight": dims + 2, "bias": 1}
    definition = Definition(GridOperands, result, reference, shared, linear=("x", "weight"))
    return Primitive(
        Operator[Spec](f"deform_conv{dims}d_on_grid", definition, _kernels, Dimensions(axes, keywords), is_native=True)
    )


conv_on_grid = {dims: _primitive(dims) for dims in (1, 2, 3)}
