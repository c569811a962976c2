"""The plans of the im2col path: parts that fit into a budget of workspace, and what a GPU sorts at a time."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from jax_dcn._operators.deform_conv.arguments import Operands
from jax_dcn._operators.deform_conv.geometry import OUTPUT_AXES
from jax_dcn._operators.deform_conv.problem import Problem, pixel_columns, row_pixels
from jax_dcn._operators.scatter import CONVOLUTION_SORT_BYTES, SAMPLE_RECORD_SIZE, TAP_RECORD_SIZE, Table, cells
from jax_dcn._primitive.parts import balanced
from jax_dcn._primitive.plan import ComputationPlan, Plans, counted
from jax_dcn._primitive.promotion import sum_dtype
from jax_dcn._primitive.target import Target
from jax_dcn._types import Shaped

# Workspace budget of a part, per array of columns or of their cotangents. That of a CPU keeps a part in its caches.
# A GPU needs large products to be fast, and the larger the faster: on an H200, a step of the benchmarks' shape A with
# 16 images takes 11 % more time with 48 MiB than with 96, 6 % less with 192, and 10 % less with 400.
COLUMN_BYTES = {"cpu": 8 * 2**20, "cuda": 96 * 2**20}
REFERENCE_DIVISOR = 16  # of two budgets: derivatives of the reference hold up to 25 arrays of the size of the columns
PRODUCT_TILE = 128  # rows and columns of a product's result that an SM computes at a time
UNKNOWN_SMS = 128  # of a GPU that is not known, as of exported programs


@dataclass(frozen=True)
class XCotangent:
    """How the cotangent of x is summed."""

    dtype: Any = None
    has_sums: bool = False  # whether sums have an array of their own: of another dtype, and not rounded by the kernel
    # What a GPU sorts at a time, for several parts: the samples of whole images, or else of rows of one image.
    sorted_images: int = 0
    sorted_rows: int = 0


@dataclass(frozen=True)
class Im2col:
    """The parts of the im2col path: how many images, or else how many rows of one image."""

    images: int
    rows: int
    sms: int  # streaming multiprocessors of the GPU; 0 on a CPU
    columns_dtype: Any  # of the cotangent of the columns
    x: XCotangent = XCotangent()

    @property
    def is_on_gpu(self) -> bool:
        return self.sms > 0

    def __str__(self) -> str:
        part = counted(self.images, "image") if self.images > 1 else counted(self.rows, "row")
        return f"{part} at a time"


def forward(problem: Problem, reason: str) -> ComputationPlan:
    dtype = _columns_cotangent_dtype(problem)
    row_bytes = problem.column_row * max(dtype.itemsize, _column_bytes(problem))
    images, rows = _fitting(problem.offset, row_bytes, COLUMN_BYTES[problem.target.platform])
    return _planned("forward", reason, Im2col(images, rows, _sms(problem), dtype), problem)


def tangent(active: Collection[str], problem: Problem) -> ComputationPlan:
    arrays = 2 if "weight" in active else 1  # of the size of the columns
    budget = arrays * COLUMN_BYTES[problem.target.platform]
    if problem.spec.dims == 3:  # evaluated in jax.numpy
        arrays *= REFERENCE_DIVISOR
    row_bytes = arrays * problem.column_row * problem.offset.dtype.itemsize
    images, rows = _fitting(problem.offset, row_bytes, budget)
    choices = Im2col(images, rows, _sms(problem), problem.offset.dtype)
    return ComputationPlan("tangent", "im2col", choices=choices)


def part_lengths(operands: Operands[Shaped], *, target: Target) -> dict[str, int]:
    """The images and rows whose columns are held at a time in derivatives of the reference."""
    x, offset, weight, _, _ = operands
    row_bytes = row_pixels(offset) * pixel_columns(x, weight) * offset.dtype.itemsize
    images, rows = _fitting(offset, row_bytes, 2 * COLUMN_BYTES[target.platform] // REFERENCE_DIVISOR)
    first_axis, *_ = OUTPUT_AXES[len(x.shape) - 2]
    return {"batch": images, first_axis: rows}


def gradients(requested: Mapping[str, str], all_reduced: Collection[str], problem: Problem) -> Plans:
    """The plans of gradients that are computed together, by the reasons for this path."""
    columns_dtype, platform = _columns_cotangent_dtype(problem), problem.target.platform
    has_both = not {"x", "offset", "mask"}.isdisjoint(requested) and "weight" in requested
    row_bytes = problem.column_row * max(columns_dtype.itemsize, _column_bytes(problem)) * (2 if has_both else 1)
    budget = COLUMN_BYTES[platform] * (2 if has_both or platform == "cpu" else 1)
    if "x" in requested:
        with_x = _with_x_of_volumes if problem.spec.dims == 3 else _with_x_of_images
        dtype = problem.offset.dtype if "x" in all_reduced else problem.x.dtype
        images, rows, x = with_x(problem, dtype, row_bytes, budget)
    else:
        images, rows, x = *_fitting(problem.offset, row_bytes, budget), XCotangent()
    choices = Im2col(images, rows, _sms(problem), columns_dtype, x)
    return {name: _planned(name, reason, choices, problem) for name, reason in requested.items()}


def _with_x_of_volumes(problem: Problem, dtype: Any, row_bytes: Any, budget: int) -> tuple[int, int, XCotangent]:
    """The parts, and the cotangent of x: the sums of a part's samples, which a kernel computes, are added up."""
    without_rows = _sort_bytes(0, problem)
    sort_row = _sort_bytes(1, problem) - without_rows
    parts = _fitting(problem.offset, row_bytes + sort_row, budget, without_rows + _image_sum_bytes(problem))
    return *parts, XCotangent(dtype, has_sums=True)


def _with_x_of_images(problem: Problem, dtype: Any, row_bytes: Any, budget: int) -> tuple[int, int, XCotangent]:
    """The parts, and the cotangent of x, which a GPU sums by sorted samples."""
    offset, has_sums = problem.offset, dtype != problem.offset.dtype
    images, rows = _fitting(offset, row_bytes, budget, _image_sum_bytes(problem) if has_sums else 0)
    if problem.target.platform == "cpu":
        return images, rows, XCotangent(dtype, has_sums)
    most_rows = _most_sorted_rows(problem)
    if most_rows is not None:
        rows = min(rows, most_rows)
        return 1, rows, XCotangent(dtype, has_sums, sorted_rows=most_rows // rows * rows)
    without_sums = _fitting(offset, row_bytes, budget)
    if without_sums[1] == offset.shape[1]:  # the CUDA kernel rounds the cotangent of a whole image itself
        (images, rows), has_sums = without_sums, False
    most_images = CONVOLUTION_SORT_BYTES // max(_sort_bytes(offset.shape[1], problem), 1)
    images = balanced(images, most_images)
    sorted_images = images * balanced(-(-offset.shape[0] // images), most_images // images)
    return images, rows, XCotangent(dtype, has_sums, sorted_images)


def product_splits(pixels: Any, features: int, columns: int, sms: int) -> int:
    """How many products of equally many pixels compute the gradient of the weight, so that all SMs have a tile.

    XLA would split a product too, but first copies its operands to a size that it can split. Symbolic sizes get one.
    """
    if not isinstance(pixels, int):
        return 1
    tiles = max(-(-features // PRODUCT_TILE) * -(-columns // PRODUCT_TILE), 1)
    return next(splits for splits in range(max(sms // tiles, 1), 0, -1) if pixels % splits == 0)


def _planned(computation: str, reason: str, choices: Im2col, problem: Problem) -> ComputationPlan:
    return ComputationPlan(computation, "im2col", reason, _workspace_bytes(computation, choices, problem), choices)


def _workspace_bytes(computation: str, choices: Im2col, problem: Problem) -> int:
    """The bytes of a part's columns or their cotangents, and of what the gradient of x sums and sorts."""
    offset, x = problem.offset, choices.x
    images, rows = _at_most(choices.images, offset.shape[0]), _at_most(choices.rows, offset.shape[1])
    columns = images * rows * problem.column_row
    if computation in ("forward", "weight"):
        return columns * _column_bytes(problem)
    size = columns * choices.columns_dtype.itemsize
    if computation == "x":
        size += images * _image_sum_bytes(problem) if x.has_sums else 0
        size += images * _sort_bytes(rows, problem) if problem.spec.dims == 3 else 0
        if x.sorted_images:
            size += _at_most(x.sorted_images, offset.shape[0]) * _sort_bytes(offset.shape[1], problem)
        if x.sorted_rows:
            size += _sort_bytes(x.sorted_rows, problem)
    return size


def _fitting(offset: Shaped, row_bytes: Any, budget: int, image_bytes: Any = 0) -> tuple[int, int]:
    """The most images, or rows of one image, that fit into `budget` bytes. Symbolic sizes get one row.

    Rows get half of the budget where an image itself leaves less: each part of rows visits all pixels of its image.
    """
    images, rows = offset.shape[:2]
    if not isinstance(rows * row_bytes + image_bytes, int):
        return 1, 1
    most = budget // max(rows * row_bytes + image_bytes, 1)
    if most > 1:
        return balanced(images, most), rows
    return 1, balanced(rows, max(budget - image_bytes, budget // 2) // max(row_bytes, 1))


def _column_bytes(problem: Problem) -> int:
    """The bytes that an element of the columns takes."""
    samples = problem.offset.dtype.itemsize if problem.masks_in_xla else 0
    return problem.x.dtype.itemsize + samples


def _image_sum_bytes(problem: Problem) -> int:
    """The bytes of the sums of one image's cotangent; of a volume, also of what is added to them, and of its x."""
    copies = 3 if problem.spec.dims == 3 else 1
    return copies * math.prod(problem.x.shape[1:]) * problem.offset.dtype.itemsize


def _columns_cotangent_dtype(problem: Problem) -> Any:
    """As the handlers have it: Device::kRoundsColumnCotangents of C++."""
    dtype, is_wide = problem.x.dtype, problem.target.platform == "cpu" and problem.spec.dims == 2
    is_wide |= problem.masks_in_xla
    return sum_dtype(dtype) if is_wide else jnp.dtype(dtype)


def _sort_bytes(rows: Any, problem: Problem) -> Any:
    """The bytes that a GPU needs to sort the samples of some rows of one image, or of some planes of one volume."""
    if problem.target.platform != "cuda":
        return 0
    (offset_groups, taps), size, dtype = problem.groups_and_taps, problem.x.shape[1:-1], problem.offset.dtype
    samples = rows * problem.row_pixels * taps
    if problem.spec.dims == 2:
        table = Table(samples, cells(*size), SAMPLE_RECORD_SIZE, dtype)
    else:  # a sample has eight taps
        table = Table(8 * samples, math.prod(size), TAP_RECORD_SIZE, dtype)
    return offset_groups * table.num_bytes


def _most_sorted_rows(problem: Problem) -> int | None:
    """As many rows of an image as CONVOLUTION_SORT_BYTES has room for; None for all."""
    without, with_all = _sort_bytes(0, problem), _sort_bytes(problem.offset.shape[1], problem)
    if not isinstance(with_all, int):
        return 1
    if with_all <= CONVOLUTION_SORT_BYTES:
        return None
    return max((CONVOLUTION_SORT_BYTES - without) // (_sort_bytes(1, problem) - without), 1)


def _sms(problem: Problem) -> int:
    return (problem.target.sms or UNKNOWN_SMS) if problem.target.platform == "cuda" else 0


def _at_most(length: int, size: Any) -> int:
    return min(length, size) if isinstance(size, int) else length
