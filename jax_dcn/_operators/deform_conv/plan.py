"""Decides how a convolution and its derivatives are computed: the path, and all parameters of its kernels.

Lowering and `kernel_plan` both ask `plan`. The executors `fused_cuda`, `fused_cpu` and `im2col` follow the plan.
"""

import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from jax_dcn._operators.deform_conv import cuda_tiles, gpu_estimate
from jax_dcn._operators.deform_conv.arguments import Operands, Spec
from jax_dcn._operators.deform_conv.geometry import OUTPUT_AXES, groups_and_taps
from jax_dcn._operators.deform_conv.gpu_estimate import ConvolutionSizes, Gpu
from jax_dcn._operators.deform_conv.im2col_chunks import (
    ChunkSizes,
    column_arrays,
    gradient_sizes,
    largest_chunk,
    sorted_shapes,
    volume_sort_words,
)
from jax_dcn._primitive import extension
from jax_dcn._primitive.chunks import balanced
from jax_dcn._primitive.operator import Request
from jax_dcn._primitive.plan import ComputationPlan
from jax_dcn._primitive.promotion import sum_dtype
from jax_dcn._primitive.target import Target
from jax_dcn._types import Shaped

LINEAR = ("x", "weight", "mask")  # the operands in each of which the result is linear

# Workspace budget per chunk of the im2col path, for the columns and their cotangents; the forward, which has columns
# only, uses half. The budget of a CPU keeps a chunk in its caches; a GPU needs large products to be fast. For 16-bit
# data on a GPU, estimates choose up to 7/4 of it.
COLUMN_BYTES = {"cpu": 16 * 2**20, "cuda": 128 * 2**20}
REFERENCE_PART = 16  # of this budget: the columns in derivatives of the reference, which hold up to 25 such arrays

SORT_BYTES = 64 * 2**20  # the most that the sorted samples, or scatter lists, of several images may take, on CUDA
_MAX_VECTORS: int = extension.modules["cpu"].fused_limits["max_vectors"]

INSTRUCTIONS: str = extension.modules["cpu"].fused_instructions
_FEATURE_PADDING: int = extension.modules["cpu"].fused_padding
# The fused path of a CPU is faster than im2col from these limits on: benchmarks/cpu_limits.py measures both sides.
MIN_GROUP_CHANNELS = 4 if INSTRUCTIONS == "avx2" else 8  # with fewer in a feature group, most lanes are empty
MAX_PIXEL_SAMPLES = 768  # taps times offset groups, whose samples of a tile each thread locates at once

_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Im2col:
    """The chunks of the im2col path: how many images, or else how many rows of one image."""

    images: int
    rows: int
    columns_dtype: Any  # of the cotangent of the columns
    x_dtype: Any = None  # of the cotangent of x
    x_sums: bool = False  # whether its sums have an array of their own: of another dtype, and not rounded by the kernel
    # What a GPU sorts at a time, for several chunks: the samples of whole images, or else of rows of one image.
    sorted_images: int = 0
    sorted_rows: int = 0
    # Of volumes, whose samples it sorts chunk by chunk: 32-bit elements per output plane, and per volume.
    sort_row: int = 0
    sort_image: int = 0
    stores_transposes: bool = False  # XLA's fast products for CPUs do not take a transposed first operand

    def __str__(self) -> str:
        return _at_a_time(self.images, "image") if self.images > 1 else _at_a_time(self.rows, "row")


class FusedCuda:
    """The parameters of a fused CUDA kernel."""


@dataclass(frozen=True)
class FusedCudaForward(FusedCuda):
    tile_features: int

    def __str__(self) -> str:
        return f"tiles of {self.tile_features} features"


@dataclass(frozen=True)
class FusedCudaInput(FusedCuda):
    """For the gradient with respect to x."""

    images: int  # at a time, whose scatter lists are in the workspace

    def __str__(self) -> str:
        return _at_a_time(self.images, "image")


@dataclass(frozen=True)
class FusedCudaPositions(FusedCuda):
    """For the gradients with respect to offset and mask, which one kernel computes."""

    block_taps: int

    def __str__(self) -> str:
        return f"{self.block_taps} tap{'' if self.block_taps == 1 else 's'} a block"


@dataclass(frozen=True)
class FusedCudaWeight(FusedCuda):
    """For the gradient with respect to weight."""

    num_splits: int

    def __str__(self) -> str:
        return f"{self.num_splits} partial sum{'' if self.num_splits == 1 else 's'}"


@dataclass(frozen=True)
class FusedCpu:
    """How the fused kernels of a CPU divide their work."""

    workspace_size: int  # in float32 elements
    # Of gradients: partial sums of that of weight, planes of that of x that add up at a time, and tasks of all.
    num_splits: int = 0
    num_planes: int = 0
    tasks: int = 0

    def __str__(self) -> str:
        return f"{self.tasks} task{'' if self.tasks == 1 else 's'}" if self.num_splits else ""


def _at_a_time(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'} at a time"


class _Problem(NamedTuple):
    """What decides: the operands with one batch dimension, by shape and type, without bias."""

    x: Shaped
    offset: Shaped
    weight: Shaped
    spec: Spec
    target: Target
    has_mask: bool

    @property
    def masks_in_xla(self) -> bool:
        """Whether XLA multiplies samples by the mask, as it does those of volumes, and not the kernels.

        The samples and the cotangents of the columns are then as wide as the mask.
        """
        return self.spec.dims == 3 and self.has_mask

    @property
    def column_bytes(self) -> int:
        """The bytes that an element of the columns takes."""
        samples = self.offset.dtype.itemsize if self.masks_in_xla else 0
        return self.x.dtype.itemsize + samples

    @property
    def groups_and_taps(self) -> tuple[int, int]:
        """The number of offset groups and the number of taps."""
        return groups_and_taps(self.offset, self.weight.shape[:-2])

    @property
    def column_row(self) -> int:
        """The number of elements of the columns of one output row."""
        return _row_pixels(self.offset) * _pixel_columns(self.x, self.weight)

    @property
    def image_sum_bytes(self) -> int:
        """The bytes of the sums of one image's cotangent; of a volume, also of what is added to them, and of its x."""
        copies = 3 if self.spec.dims == 3 else 1
        return copies * math.prod(self.x.shape[1:]) * self.offset.dtype.itemsize

    @property
    def volume_sort_words(self) -> tuple[int, int]:
        offset_groups, taps = self.groups_and_taps
        row_samples = _row_pixels(self.offset) * offset_groups * taps
        return volume_sort_words(row_samples, offset_groups, self.x.shape[1:-1], self.offset.dtype.itemsize)

    def sort_bytes(self, rows: int) -> int:
        """The bytes that a GPU needs to sort the samples of some rows of one image by pixel of x."""
        offset_groups, taps = self.groups_and_taps
        samples = rows * _row_pixels(self.offset) * taps
        shapes = sorted_shapes((offset_groups,), samples, self.x.shape[1:-1], self.offset.dtype.itemsize)
        return 4 * sum(map(math.prod, shapes))

    @property
    def sizes(self) -> ConvolutionSizes:
        """The sizes for estimates, as far as they are known: a symbolic number, or size, of images counts as 1."""
        offset_groups, taps = self.groups_and_taps
        return ConvolutionSizes(
            images=_known_size(self.x.shape[0]),
            image_size=(_known_size(self.x.shape[1]), _known_size(self.x.shape[2])),
            pixels=_known_pixels(self.offset),
            rows=_known_size(self.offset.shape[1]),
            taps=taps,
            channels=self.x.shape[-1],
            features=self.weight.shape[-1],
            groups=self.spec.feature_group_count,
            offset_groups=offset_groups,
            itemsize=self.x.dtype.itemsize,
        )

    @property
    def can_be_estimated(self) -> bool:
        """Whether no size is symbolic and no array empty."""
        shapes = (*self.x.shape, *self.offset.shape, *self.weight.shape)
        return all(isinstance(size, int) and size > 0 for size in shapes)

    @property
    def gpu(self) -> Gpu:
        return gpu_estimate.gpu_of(self.target.compute_capability, self.target.sms, self.target.kind)


def plan(request: Request, operands: Operands[Shaped]) -> dict[str, ComputationPlan]:
    """The plans by computation: "forward", "tangent", or the operands whose cotangents are requested."""
    step, spec, target, all_reduced = request
    problem = _Problem(operands.x, operands.offset, operands.weight, spec, target, operands.mask is not None)
    if step is None:
        return {"forward": _forward(problem)}
    if step.mode == "jvp":
        return _tangent(step.arguments, problem)
    return _cotangents(step.arguments, all_reduced, problem)


def reference_chunk(operands: Operands[Shaped], *, target: Target) -> dict[str, int]:
    """The images and rows whose columns are held at a time in derivatives of the reference."""
    x, offset, weight, _, _ = operands
    row_bytes = _row_pixels(offset) * _pixel_columns(x, weight) * offset.dtype.itemsize
    chunk = largest_chunk(_chunk_sizes(offset, row_bytes), COLUMN_BYTES[target.platform] // REFERENCE_PART)
    first_axis, *_ = OUTPUT_AXES[len(x.shape) - 2]
    return {"batch": chunk.images, first_axis: chunk.rows}


def flops(computation: str, operands: Operands[Shaped], spec: Spec) -> int:
    """The operations of the product, and two for each corner of an interpolated or scattered element of the columns."""
    x, offset, weight, _, _ = operands
    pixels = math.prod(offset.shape[:-1])
    if computation == "bias":
        return pixels * weight.shape[-1]
    columns = pixels * _pixel_columns(x, weight)
    return 2 * columns * (weight.shape[-1] // spec.feature_group_count) + 2 * 2**spec.dims * columns


def samples(operands: Operands[Shaped], spec: Spec) -> int:
    """The bytes of the columns of the whole batch, in the type of sums."""
    x, offset, weight, _, _ = operands
    return math.prod(offset.shape[:-1]) * _pixel_columns(x, weight) * offset.dtype.itemsize


def _row_pixels(offset: Shaped) -> int:
    """The pixels of an output row; of volumes, of a plane."""
    return math.prod(offset.shape[2:-1])


def _pixel_columns(x: Shaped, weight: Shaped) -> int:
    """The number of elements of the columns of one pixel of the result."""
    return math.prod(weight.shape[:-2]) * x.shape[-1]


def _paths(computations: Collection[str], problem: _Problem) -> dict[str, tuple[str, str]]:
    """The paths of the forward, or of gradients that are computed together, and the reasons.

    They are those that were requested, or else the fastest of those that are possible. Raises ValueError where the
    fused path was requested and is impossible.
    """
    known = {name: _known_path(name, problem) for name in computations}
    estimated = [name for name, path in known.items() if path is None]
    if not estimated:
        return {name: path for name, path in known.items() if path is not None}
    sizes, gpu = problem.sizes, problem.gpu
    others = [name for name, path in known.items() if path is not None and path[0] == "im2col"]
    by_im2col = gpu_estimate.im2col_choice(estimated, others, sizes, gpu)

    def milliseconds(im2col: Collection[str]) -> str:
        return f"{gpu_estimate.total_seconds(computations, [*im2col, *others], sizes, gpu) * 1e3:.2g} ms"

    what = " of these gradients" if len(computations) > 1 else ""
    where = " where possible" if others else ""
    reason = (
        f"estimates for {gpu.architecture}{what}: fused{where} {milliseconds([])}, im2col {milliseconds(estimated)}"
    )
    if 0 < len(by_im2col) < len(estimated):
        reason += f", chosen {milliseconds(by_im2col)}"
    return {name: path or ("im2col" if name in by_im2col else "fused", reason) for name, path in known.items()}


def _known_path(computation: str, problem: _Problem) -> tuple[str, str] | None:
    """The path and the reason, or None where estimates decide."""
    spec, platform = problem.spec, problem.target.platform
    unsupported = _unsupported_reason(computation, problem)
    if spec.path == "fused" and unsupported:
        what = "the forward" if computation == "forward" else f"the gradient of {computation}"
        raise ValueError(f"backend='fused' cannot compute {what}: {unsupported}. With backend=None it can be computed")
    if spec.path is not None:
        return spec.path, f"backend={spec.path!r} was passed"
    if unsupported:
        return "im2col", unsupported
    if platform == "cpu":
        slow = _slow_reason(problem)
        return ("im2col", slow) if slow else ("fused", f"the processor has {INSTRUCTIONS}")
    if not problem.can_be_estimated:
        return "fused", "no time is estimated for arrays that are empty or of a symbolic size"
    return None


def _unsupported_reason(computation: str, problem: _Problem) -> str:
    """Why the fused kernels cannot do it, or an empty string: the rules are in lib/fused_rules.cc."""
    x, offset, weight, spec, target, _ = problem
    if spec.dims == 3:
        return "the fused kernels support two spatial axes only"
    offset_groups, taps = problem.groups_and_taps
    both = spec.precision if isinstance(spec.precision, tuple) else (spec.precision,)
    tf32 = spec.precision == lax.DotAlgorithmPreset.TF32_TF32_F32
    reason: str = extension.modules["cpu"].fused_unsupported(
        platform=target.platform,
        computation=computation,
        dtype=jnp.dtype(x.dtype).name,
        y_dtype=jnp.dtype(spec.dtype).name,
        x=_for_rules(x.shape),
        y=_for_rules((*offset.shape[1:3], weight.shape[-1])),
        taps_and_groups=_for_rules((taps, spec.feature_group_count, offset_groups)),
        precision=(
            ", ".join(str(getattr(one, "name", one)) for one in both),
            tf32 or all(one in (None, lax.Precision.DEFAULT) for one in both),
            not all(one is None or isinstance(one, lax.Precision) for one in both),
        ),
    )
    return reason


def _for_rules(sizes: Sequence[Any]) -> list[int]:
    """Sizes as lib/fused_rules.h takes them: -1 is a symbolic one."""
    return [min(size, 2**62) if isinstance(size, int) else -1 for size in sizes]


def _slow_reason(problem: _Problem) -> str:
    """What makes the fused path of a CPU slower than im2col, or an empty string."""
    _, _, weight, spec, *_ = problem
    if INSTRUCTIONS == "portable":
        if not extension.modules["cpu"].has_x86_kernels:
            return "this build has no kernels for AVX2: the processor or the compiler does not support them"
        if os.environ.get("JAX_DCN_CPU_INSTRUCTIONS") == "portable":
            return "JAX_DCN_CPU_INSTRUCTIONS is portable"
        return "the processor has no AVX2, no FMA or no F16C"
    groups = spec.feature_group_count
    if groups > 1 and (fewest := min(weight.shape[2], weight.shape[-1] // groups)) < MIN_GROUP_CHANNELS:
        return f"each group has {fewest} channels; the fused kernels are fast from {MIN_GROUP_CHANNELS} on"
    if (count := math.prod(problem.groups_and_taps)) > MAX_PIXEL_SAMPLES:
        return f"there are {count} samples for each pixel; the fused kernels are fast up to {MAX_PIXEL_SAMPLES}"
    return ""


def _forward(problem: _Problem) -> ComputationPlan:
    _, offset, weight, spec, target, _ = problem
    path, reason = _paths(["forward"], problem)["forward"]
    if path == "im2col":
        return _im2col_forward(reason, problem)
    if target.platform == "cpu":
        size = _packed_weight_size(weight, spec) if weight.dtype == jnp.bfloat16 else 0
        return ComputationPlan("forward", path, reason, _FLOAT32_BYTES * size, FusedCpu(size))
    pixels, features = math.prod(offset.shape[:3]), weight.shape[-1]
    tile = cuda_tiles.tile_features(pixels, features, spec.feature_group_count, problem.gpu.resident_blocks)
    return ComputationPlan("forward", path, reason, _weight_bytes(weight), FusedCudaForward(tile))


def _im2col_forward(reason: str, problem: _Problem) -> ComputationPlan:
    dtype = _columns_cotangent_dtype(problem)
    sizes = _chunk_sizes(problem.offset, problem.column_row * max(dtype.itemsize, problem.column_bytes))
    chunk = largest_chunk(sizes, _budget(["forward"], problem))
    choices = Im2col(chunk.images, chunk.rows, dtype)
    size = _column_count(choices, problem) * problem.column_bytes
    return ComputationPlan("forward", "im2col", reason, size, choices)


def _tangent(active: Collection[str], problem: _Problem) -> dict[str, ComputationPlan]:
    """The forward of a tangent, where the result is linear in the only active operand; else one product of tangents."""
    active = set(active) - {"bias"}
    if not active:
        return {}
    if len(active) == 1 and not active.isdisjoint(LINEAR):
        return {"forward": _forward(problem)}
    arrays = 2 if "weight" in active else 1  # of the size of the columns
    if problem.spec.dims == 3:  # evaluated in jax.numpy
        arrays *= REFERENCE_PART
    row_bytes = arrays * problem.column_row * problem.offset.dtype.itemsize
    budget = (2 if "weight" in active else 1) * COLUMN_BYTES[problem.target.platform] // 2
    chunk = largest_chunk(_chunk_sizes(problem.offset, row_bytes), budget)
    choices = Im2col(chunk.images, chunk.rows, problem.offset.dtype)
    return {"tangent": ComputationPlan("tangent", "im2col", choices=choices)}


def _cotangents(
    requested: Sequence[str], all_reduced: Collection[str], problem: _Problem
) -> dict[str, ComputationPlan]:
    x, _, _, spec, target, _ = problem
    paths = _paths([name for name in requested if name != "bias"], problem)
    # The fused kernels of the CPU would round the cotangent of x before its sum over devices.
    if "x" in all_reduced and target.platform == "cpu" and x.dtype.itemsize == 2 and spec.path is None:
        paths["x"] = "im2col", "its sum over devices is rounded once"
    by_im2col = [name for name, (path, _) in paths.items() if path == "im2col"]
    fused = [name for name in paths if name not in by_im2col]
    choices: dict[str, Any] = {}
    if by_im2col:
        choices |= dict.fromkeys(by_im2col, _im2col_cotangents(by_im2col, all_reduced, problem))
    if fused and target.platform == "cpu":
        choices |= dict.fromkeys(fused, _fused_cpu_gradients(fused, problem))
    elif fused:
        choices |= {name: _fused_cuda_gradient(name, problem) for name in fused}
    plans = {
        name: ComputationPlan(name, *paths[name], _workspace_bytes(name, choices[name], problem), choices[name])
        for name in paths
    }
    if "bias" in requested:
        reason = "it is a sum over the cotangent of the result, which needs no kernel"
        plans["bias"] = ComputationPlan("bias", "xla", reason)
    return plans


def _workspace_bytes(name: str, choices: Im2col | FusedCpu | FusedCuda, problem: _Problem) -> int:
    x, offset, weight, *_ = problem
    if isinstance(choices, FusedCpu):
        return _FLOAT32_BYTES * choices.workspace_size
    if isinstance(choices, FusedCudaWeight):
        return choices.num_splits * math.prod(weight.shape) * _FLOAT32_BYTES
    if isinstance(choices, FusedCudaInput):
        return _weight_bytes(weight) + choices.images * _list_bytes(x, offset)
    if isinstance(choices, FusedCuda):
        return _weight_bytes(weight)
    columns = _column_count(choices, problem)
    if name == "weight":
        return columns * problem.column_bytes
    size = columns * choices.columns_dtype.itemsize
    if name == "x":
        images, rows = _within(choices, offset)
        sums = problem.image_sum_bytes if choices.x_sums else 0
        size += images * (4 * (rows * choices.sort_row + choices.sort_image) + sums)
        if choices.sorted_images:
            size += _at_most(choices.sorted_images, offset.shape[0]) * problem.sort_bytes(offset.shape[1])
        if choices.sorted_rows:
            size += problem.sort_bytes(choices.sorted_rows)
    return size


def _fused_cuda_gradient(name: str, problem: _Problem) -> FusedCuda:
    x, offset, weight, *_ = problem
    if name == "x":
        vectors = math.prod(offset.shape[1:3]) * weight.shape[-1] * weight.dtype.itemsize // cuda_tiles.VECTOR_BYTES
        limit = min(SORT_BYTES // max(_list_bytes(x, offset), 1), _MAX_VECTORS // max(vectors, 1))
        images = x.shape[0]
        return FusedCudaInput(min(images, balanced(images, limit)) if isinstance(images, int) else max(limit, 1))
    if name == "weight":
        return FusedCudaWeight(gpu_estimate.weight_splits(problem.sizes, problem.gpu))
    return FusedCudaPositions(cuda_tiles.block_taps(_known_pixels(offset), *problem.groups_and_taps))


def scatter_list_shapes(taps: tuple[int, ...], output_pixels: int, image_pixels: int) -> list[tuple[int, ...]]:
    """The shapes of row_start, contributions and the workspace to sort, all int32, for dimensions `taps` of taps."""
    contributions = 4 * output_pixels  # each sample is in the lists of four pixels
    return [(*taps, image_pixels + 1), (*taps, contributions, 2), (*taps, contributions)]


def _list_bytes(x: Shaped, offset: Shaped) -> int:
    """The bytes of the scatter lists of one image."""
    shapes = scatter_list_shapes((offset.shape[-1] // 2,), math.prod(offset.shape[1:3]), math.prod(x.shape[1:3]))
    return 4 * sum(map(math.prod, shapes))


def _fused_cpu_gradients(requested: Collection[str], problem: _Problem) -> FusedCpu:
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


def _packed_weight_size(weight: Shaped, spec: Spec) -> int:
    """The float32 elements of a packed weight of bfloat16: FusedForwardWorkspace in lib/deform_conv_fused.h."""
    kh, kw, group_channels, features = weight.shape
    groups = spec.feature_group_count
    return kh * kw * group_channels * groups * -(-features // groups // _FEATURE_PADDING) * _FEATURE_PADDING // 2


def _im2col_cotangents(requested: Collection[str], all_reduced: Collection[str], problem: _Problem) -> Im2col:
    x, offset, _, spec, target, _ = problem
    of_volumes = spec.dims == 3  # whose kernel computes the sums of its samples, which are then added up
    columns_dtype, on_cuda = _columns_cotangent_dtype(problem), target.platform == "cuda"
    x_dtype = offset.dtype if "x" in all_reduced else x.dtype
    sorts = "x" in requested and on_cuda
    volume_sort = problem.volume_sort_words if sorts and of_volumes else (0, 0)
    most_rows = _most_sorted_rows(problem) if sorts and not of_volumes else None
    images, rows = offset.shape[:2]
    sizes = gradient_sizes(
        requested,
        images,
        rows,
        problem.column_row * max(columns_dtype.itemsize, problem.column_bytes),
        sum_bytes=problem.image_sum_bytes if x_dtype != offset.dtype or of_volumes else 0,
        kernel_rounds=on_cuda and not of_volumes and most_rows is None,
        volume_sort=volume_sort,
    )
    chunk = largest_chunk(sizes, _budget(requested, problem))
    sorted_images = sorted_rows = 0
    if most_rows is not None:
        chunk = chunk._replace(images=1, rows=min(chunk.rows, most_rows))
        sorted_rows = most_rows // chunk.rows * chunk.rows
    elif sorts and not of_volumes:
        most_images = SORT_BYTES // max(problem.sort_bytes(rows), 1)
        chunk = chunk._replace(images=balanced(chunk.images, most_images))
        sorted_images = chunk.images * balanced(-(-images // chunk.images), most_images // chunk.images)
    return Im2col(
        chunk.images,
        chunk.rows,
        columns_dtype,
        x_dtype,
        chunk.has_sums or of_volumes,
        sorted_images,
        sorted_rows,
        *volume_sort,
        stores_transposes=not on_cuda,
    )


def _most_sorted_rows(problem: _Problem) -> int | None:
    """As many rows of an image as SORT_BYTES have room for; None for all."""
    rows = problem.offset.shape[1]
    without, with_all = problem.sort_bytes(0), problem.sort_bytes(rows)
    if not isinstance(with_all, int):
        return 1
    if with_all <= SORT_BYTES:
        return None
    return max((SORT_BYTES - without) // (problem.sort_bytes(1) - without), 1)


def _chunk_sizes(offset: Shaped, row_bytes: int) -> ChunkSizes:
    images, rows = offset.shape[:2]
    return ChunkSizes(images, rows, row_bytes)


def _columns_cotangent_dtype(problem: _Problem) -> Any:
    """As the handlers have it: Device::kRoundsColumnCotangents in lib/cpu/device.h and lib/cuda/device.h."""
    dtype, is_wide = problem.x.dtype, problem.target.platform == "cpu" and problem.spec.dims == 2
    is_wide |= problem.masks_in_xla
    return sum_dtype(dtype) if is_wide else jnp.dtype(dtype)


def _budget(computations: Collection[str], problem: _Problem) -> int:
    """The bytes of a chunk."""
    target = problem.target
    limit = COLUMN_BYTES[target.platform] // (2 if "forward" in computations else 1)
    if target.platform != "cuda" or problem.x.dtype.itemsize != 2 or problem.spec.dims == 3:
        return limit
    if not problem.can_be_estimated:
        return min(limit, column_arrays(computations) * gpu_estimate.LARGE_CHUNKS[0])
    return min(limit * 7 // 4, gpu_estimate.chunk_budget(computations, problem.sizes, problem.gpu))


def _within(choices: Im2col, offset: Shaped) -> tuple[int, int]:
    """The images and rows of a chunk, which may be longer than the arrays."""
    return _at_most(choices.images, offset.shape[0]), _at_most(choices.rows, offset.shape[1])


def _at_most(chunk: int, size: Any) -> int:
    return min(chunk, size) if isinstance(size, int) else chunk


def _column_count(choices: Im2col, problem: _Problem) -> int:
    """The number of elements of the columns of a chunk."""
    return math.prod(_within(choices, problem.offset)) * problem.column_row


def _weight_bytes(weight: Shaped) -> int:
    return math.prod(weight.shape) * weight.dtype.itemsize


def _known_size(size: Any) -> int:
    """1 for a symbolic size."""
    return size if isinstance(size, int) else 1


def _known_pixels(array: Shaped) -> int:
    """The pixels of all images, as far as sizes are known."""
    return math.prod(size for size in array.shape[:-1] if isinstance(size, int))
