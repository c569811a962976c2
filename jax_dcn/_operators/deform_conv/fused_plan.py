"""The plans of the fused path: tiles, divisions of the work, and workspaces."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from jax_dcn._operators.deform_conv.gpus import UNKNOWN_SMS, gpu_of
from jax_dcn._operators.deform_conv.problem import Problem
from jax_dcn._primitive import extension
from jax_dcn._primitive.plan import ComputationPlan, Plans, counted

_LIMITS = extension.modules["cpu"].fused_limits  # struct FusedLimits of C++ says what these are
TILE_PIXELS: int = _LIMITS["tile_pixels"]
TILE_FEATURES: tuple[int, ...] = _LIMITS["tile_features"]
WEIGHT_TILE: int = _LIMITS["weight_tile"]
WEIGHT_TILE_SAMPLES: dict[int, int] = _LIMITS["weight_tile_samples"]  # the most, by the features of a tile
_FLOAT32_BYTES = 4

MIN_BLOCKS = 128  # thread blocks of the forward: about the number of SMs of a large GPU
MIN_SPLIT_PIXELS = 512  # output pixels of a partial sum of the gradient of weight


@dataclass(frozen=True)
class FusedCpu:
    """How the fused kernels of a CPU divide their work."""

    workspace_size: int  # in float32 elements
    # Of gradients: partial sums of that of weight, planes of that of x that add up at a time, and tasks of all.
    num_splits: int = 0
    num_planes: int = 0
    tasks: int = 0

    def __str__(self) -> str:
        return counted(self.tasks, "task") if self.num_splits else ""


@dataclass(frozen=True)
class FusedCudaForward:
    tile_features: int
    warps: int

    def __str__(self) -> str:
        return f"tiles of {self.tile_features} features"


@dataclass(frozen=True)
class FusedCudaWeight:
    """For the gradient with respect to weight."""

    num_splits: int
    tile_features: int
    warps: int
    has_one_sample: bool  # whether each tile has one sample of a pixel

    def __str__(self) -> str:
        return counted(self.num_splits, "partial sum")


def cpu_forward(problem: Problem, reason: str) -> ComputationPlan:
    x, _, weight, spec, *_ = problem
    _, taps = problem.groups_and_taps
    size = extension.modules["cpu"].fused_forward_workspace(
        dtype=jnp.dtype(x.dtype).name,
        channels=x.shape[-1],
        features=weight.shape[-1],
        taps=taps,
        groups=spec.feature_group_count,
    )
    return _planned("forward", reason, FusedCpu(size), _FLOAT32_BYTES * size)


def cpu_gradients(requested: Mapping[str, str], problem: Problem) -> Plans:
    """The plans of gradients that are computed together, by the reasons for this path."""
    x, offset, weight, spec, *_ = problem
    offset_groups, taps = problem.groups_and_taps
    num_splits, num_planes, size, tasks = extension.modules["cpu"].fused_cotangents_plan(
        dtype=jnp.dtype(x.dtype).name,
        x=x.shape,
        y=(*offset.shape[1:3], weight.shape[-1]),
        taps_and_groups=(taps, spec.feature_group_count, offset_groups),
        requested=("x" in requested, not {"offset", "mask"}.isdisjoint(requested), "weight" in requested),
    )
    choices = FusedCpu(size, num_splits, num_planes, tasks)
    return {name: _planned(name, reason, choices, _FLOAT32_BYTES * size) for name, reason in requested.items()}


def cuda_forward(problem: Problem, reason: str) -> ComputationPlan:
    """The widest tile that a group's features fill, but narrower ones where too few blocks would keep a GPU busy.

    A block samples its pixels once for all its features. A symbolic number of pixels counts as many. Where an SM
    has shared memory for only one block, the widest tile does not fit in it. The workspace is the transposed weight.
    """
    pixels, groups = math.prod(problem.offset.shape[:3]), problem.spec.feature_group_count
    resident_blocks = gpu_of(problem.target.compute_capability).resident_blocks
    sizes = TILE_FEATURES if resident_blocks > 1 else TILE_FEATURES[:-1]

    def blocks(tile: int) -> int:
        return -(-pixels // TILE_PIXELS) * groups * -(-problem.group_features // tile)

    tile = next((tile for tile in sizes if tile >= problem.group_features), sizes[-1])
    while tile > sizes[0] and isinstance(pixels, int) and blocks(tile) < MIN_BLOCKS:
        tile //= 2
    choices = FusedCudaForward(tile, warps=4 if resident_blocks > 1 and tile < TILE_FEATURES[-1] else 8)
    return _planned("forward", reason, choices, problem.weight.dtype.itemsize * math.prod(problem.weight.shape))


def cuda_weight(problem: Problem, reason: str) -> ComputationPlan:
    """As many partial sums, each over a part of the pixels, as fill one wave of thread blocks.

    Symbolic numbers count as 1.
    """
    _, taps = problem.groups_and_taps
    groups, segment = problem.spec.feature_group_count, problem.segment_channels
    resident_blocks = gpu_of(problem.target.compute_capability).resident_blocks
    *_, widest = WEIGHT_TILE_SAMPLES
    tile = next((tile for tile in WEIGHT_TILE_SAMPLES if tile >= problem.group_features), widest)
    has_one_sample = segment % WEIGHT_TILE == 0
    rows = min(WEIGHT_TILE, (1 if has_one_sample else WEIGHT_TILE_SAMPLES[tile]) * segment)
    tiles = groups * -(-taps * problem.x.shape[-1] // groups // rows) * -(-problem.group_features // tile)
    pixels = math.prod(size for size in problem.offset.shape[:-1] if isinstance(size, int))
    slices = -(-pixels * problem.x.dtype.itemsize // 128)  # K slices of 128 bytes
    most = min(resident_blocks * (problem.target.sms or UNKNOWN_SMS) // tiles, pixels // MIN_SPLIT_PIXELS)
    slices_per_split = -(-slices // max(most, 1))
    num_splits = max(-(-slices // max(slices_per_split, 1)), 1)  # as few as have so many slices each
    warps = 4 if resident_blocks > 1 and tile == 128 else 8
    size = _FLOAT32_BYTES * num_splits * math.prod(problem.weight.shape)
    return _planned("weight", reason, FusedCudaWeight(num_splits, tile, warps, has_one_sample), size)


def _planned(computation: str, reason: str, choices: Any, workspace_bytes: int) -> ComputationPlan:
    return ComputationPlan(computation, "fused", reason, workspace_bytes, choices)
