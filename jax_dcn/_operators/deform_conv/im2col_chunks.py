"""The chunks of the im2col path: how many images, or rows of one image, fit into a budget of workspace."""

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from jax_dcn._primitive.chunks import balanced


class Chunk(NamedTuple):
    images: int
    rows: int
    has_sums: bool  # whether the sums of the cotangent of x have an array of their own


class ChunkSizes(NamedTuple):
    """What decides: of the output, and in bytes of workspace. Images and rows may be symbolic."""

    images: Any
    rows: Any
    row_bytes: Any
    image_bytes: Any = 0
    sum_bytes: Any = 0  # of an image's cotangent of x, if its type is not that of its sums
    kernel_rounds: bool = False  # the sums of whole images, which then take no workspace


def column_arrays(computations: Collection[str]) -> int:
    """The number of arrays of the size of the columns: the columns and their cotangents."""
    return max((not {"x", "offset", "mask"}.isdisjoint(computations)) + ("weight" in computations), 1)


def sorted_shapes(
    tables: tuple[Any, ...], samples: Any, image_size: Sequence[Any], sum_itemsize: int
) -> list[tuple[Any, ...]]:
    """The shapes of samples, cell_start and the workspace to sort, all int32, for dimensions `tables` of tables."""
    height, width = image_size
    numbers = sum_itemsize  # 32-bit elements of four numbers of the sums' type
    return [(*tables, samples, numbers), (*tables, (height + 1) * (width + 1) + 1), (*tables, samples)]


def volume_sort_words(row_samples: Any, offset_groups: int, size: Sequence[Any], sum_itemsize: int) -> tuple[Any, Any]:
    """32-bit elements that a GPU needs to sort the samples of volumes by pixel of x: per output plane, and per volume.

    For each of eight pixels an id, a point and a weight: TableWords of sampling_x.cu.
    """
    return row_samples * 8 * (1 + sum_itemsize // 2), offset_groups * (math.prod(size) + 1)


def gradient_sizes(
    computations: Collection[str],
    images: Any,
    rows: Any,
    column_row_bytes: Any,
    *,
    sum_bytes: Any,
    kernel_rounds: bool,
    volume_sort: tuple[Any, Any] = (0, 0),
) -> ChunkSizes:
    """What the forward holds, or gradients that are computed together. Only that of x needs `sum_bytes`."""
    sort_row, sort_image = volume_sort
    return ChunkSizes(
        images,
        rows,
        row_bytes=column_arrays(computations) * column_row_bytes + 4 * sort_row,
        image_bytes=4 * sort_image,
        sum_bytes=sum_bytes if "x" in computations else 0,
        kernel_rounds=kernel_rounds,
    )


def largest_chunk(sizes: ChunkSizes, budget: int) -> Chunk:
    """The most images or rows that fit into `budget` bytes. Symbolic sizes get one row."""
    if sizes.kernel_rounds:
        images, rows, has_all_rows = _fitting(sizes, budget, 0)
        if has_all_rows:
            return Chunk(images, rows, False)
    images, rows, _ = _fitting(sizes, budget, sizes.sum_bytes)
    return Chunk(images, rows, not (isinstance(sizes.sum_bytes, int) and sizes.sum_bytes == 0))


def _fitting(sizes: ChunkSizes, budget: int, sum_bytes: Any) -> tuple[int, int, bool]:
    """The images, the rows, and whether these are all of an image.

    Rows get half of the budget where an image itself leaves less: each chunk of rows visits all pixels of its image.
    """
    images, rows, row_bytes, image_bytes, *_ = sizes
    image_bytes += sum_bytes
    if not isinstance(rows * row_bytes + image_bytes, int):
        return 1, 1, False
    most = budget // max(rows * row_bytes + image_bytes, 1)
    if most > 1:
        return balanced(images, most), rows, True
    fitting = balanced(rows, max(budget - image_bytes, budget // 2) // max(row_bytes, 1))
    return 1, fitting, fitting == rows
