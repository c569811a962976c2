"""The parameters of the fused kernels: tiles, divisions of the work, and workspaces."""

import math
from collections.abc import Collection
from dataclasses import dataclass

import jax.numpy as jnp

from jax_dcn._operators.deform_conv.problem import Problem
from jax_dcn._primitive import extension
from jax_dcn._primitive.plan import counted

_LIMITS = extension.modules["cpu"].fused_limits  # struct FusedLimits of C++ says what these are
TILE_PIXELS: int = _LIMITS["tile_pixels"]
TILE_FEATURES: tuple[int, ...] = _LIMITS["tile_features"]
WEIGHT_TILE: int = _LIMITS["weight_tile"]
WEIGHT_TILE_SAMPLES: dict[int, int] = _LIMITS["weight_tile_samples"]  # the most, by the features of a tile
MIN_SPLIT_PIXELS: int = _LIMITS["min_split_pixels"]
_FLOAT32_BYTES = 4

MIN_BLOCKS = 128  # thread blocks of the forward: about the number of SMs of a large GPU
UNKNOWN_SMS = 128


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


def cpu_forward(problem: Problem) -> FusedCpu:
    x, _, weight, spec, *_ = problem
    _, taps = problem.groups_and_taps
    return FusedCpu(
        extension.modules["cpu"].fused_forward_workspace(
            dtype=jnp.dtype(x.dtype).name,
            channels=x.shape[-1],
            features=weight.shape[-1],
            taps=taps,
            groups=spec.feature_group_count,
        )
    )


def cpu_gradients(requested: Collection[str], problem: Problem) -> FusedCpu:
    x, offset, weight, spec, *_ = problem
    offset_groups, taps = problem.groups_and_taps
    num_splits, num_planes, size, tasks = extension.modules["cpu"].fused_cotangents_plan(
        dtype=jnp.dtype(x.dtype).name,
        x=x.shape,
        y=(*offset.shape[1:3], weight.shape[-1]),
        taps_and_groups=(taps, spec.feature_group_count, offset_groups),
        requested=("x" in requested, not {"offset", "mask"}.isdisjoint(requested), "weight" in requested),
    )
    return FusedCpu(size, num_splits, num_planes, tasks)


def cuda_forward(problem: Problem, resident_blocks: int) -> FusedCudaForward:
    """The widest tile that a group's features fill, but narrower ones where too few blocks would keep a GPU busy.

    A block samples its pixels once for all its features. A symbolic number of pixels counts as many. Where an SM has
    shared memory for only one block, it has none for the widest tile.
    """
    pixels, groups = math.prod(problem.offset.shape[:3]), problem.spec.feature_group_count
    sizes = TILE_FEATURES if resident_blocks > 1 else TILE_FEATURES[:-1]

    def blocks(tile: int) -> int:
        return -(-pixels // TILE_PIXELS) * groups * -(-problem.group_features // tile)

    tile = next((tile for tile in sizes if tile >= problem.group_features), sizes[-1])
    while tile > sizes[0] and isinstance(pixels, int) and blocks(tile) < MIN_BLOCKS:
        tile //= 2
    return FusedCudaForward(tile, warps=4 if resident_blocks > 1 and tile < TILE_FEATURES[-1] else 8)


def cuda_weight(problem: Problem, resident_blocks: int) -> FusedCudaWeight:
    """As many partial sums, each over a part of the pixels, as fill one wave of thread blocks.

    Symbolic numbers count as 1.
    """
    _, taps = problem.groups_and_taps
    groups, segment = problem.spec.feature_group_count, problem.segment_channels
    tile = 64 if problem.group_features <= 64 else 128
    has_one_sample = segment % WEIGHT_TILE == 0
    rows = min(WEIGHT_TILE, (1 if has_one_sample else WEIGHT_TILE_SAMPLES[tile]) * segment)
    tiles = groups * -(-taps * problem.x.shape[-1] // groups // rows) * -(-problem.group_features // tile)
    pixels = math.prod(size for size in problem.offset.shape[:-1] if isinstance(size, int))
    slices = -(-pixels * problem.x.dtype.itemsize // 128)  # K slices of 128 bytes
    most = min(resident_blocks * (problem.target.sms or UNKNOWN_SMS) // tiles, pixels // MIN_SPLIT_PIXELS)
    slices_per_split = -(-slices // max(most, 1))
    num_splits = max(-(-slices // max(slices_per_split, 1)), 1)  # the fewest with as many slices
    return FusedCudaWeight(num_splits, tile, 4 if resident_blocks > 1 and tile == 128 else 8, has_one_sample)


def workspace_bytes(choices: FusedCpu | FusedCudaForward | FusedCudaWeight, problem: Problem) -> int:
    """The bytes of arrays besides operands and results. CUDA's forward takes a transposed weight."""
    elements = math.prod(problem.weight.shape)
    match choices:
        case FusedCpu():
            return _FLOAT32_BYTES * choices.workspace_size
        case FusedCudaWeight():
            return _FLOAT32_BYTES * choices.num_splits * elements
    return problem.weight.dtype.itemsize * elements
