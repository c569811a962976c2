"""Evaluates a function in parts of named dimensions, so that its workspace is that of one part."""

from collections.abc import Callable, Mapping, Sequence

import jax
from jax.typing import ArrayLike

from jax_dcn._primitive.chain import Arrays
from jax_dcn._primitive.chunks import Size, filled, fold, read_chunk, write_chunk
from jax_dcn._primitive.partition import NamedArray, Names
from jax_dcn._primitive.promotion import sum_dtype

Starts = Mapping[str, ArrayLike]


def evaluate(
    function: Callable[[Arrays, Starts], Arrays],
    arrays: Arrays,
    arguments: Mapping[str, Names],
    results: Mapping[str, NamedArray],
    lengths: Sequence[tuple[str, Size]],
    fill: int,
    starts: Starts | None = None,
) -> Arrays:
    """The results of `function`, evaluated in parts of named dimensions.

    As in `partition`, dimensions of the same name are cut alike. An argument that lacks a name is passed whole, and a
    result that lacks it is the sum over the parts.

    Args:
      function: `function(arrays, starts)` computes the results of a part from its arguments, in the dtype of sums. In
        the dimensions of a name the part begins at index `starts[name]`.
      arrays: the arguments.
      arguments: the names of their dimensions.
      results: the names, shapes and dtypes of the results. Sums are returned in the dtype of sums.
      lengths: names, from the outermost loop to the innermost, and the lengths of their parts.
      fill: a positive number that differs from that of other derivatives in a program. Arrays that are overwritten
        start from it, each from another value: XLA for CPUs, which ignores the barrier of `filled`, would make one
        array for those that start from equal values, and copy it.
      starts: where the outer loops begin.
    """
    starts = starts or {}
    if not lengths:
        return function(arrays, starts)
    (name, length), *inner = lengths
    axes = {key: names.index(name) for key, names in arguments.items() if name in names}
    result_axes = {key: result.names.index(name) for key, result in results.items() if name in result.names}
    like, axis_of_like = next((arrays[key], axis) for key, axis in axes.items())
    total = like.shape[axis_of_like]
    if isinstance(total, int) and total <= length:
        return evaluate(function, arrays, arguments, results, inner, fill, {**starts, name: 0})

    def of_part(start: ArrayLike, size: Size) -> Arrays:
        def read(array: jax.Array, axis: int) -> jax.Array:
            return read_chunk(array, (*[0] * axis, start), (*array.shape[:axis], size))

        def resized(result: NamedArray, axis: int) -> NamedArray:
            return result._replace(shape=(*result.shape[:axis], size, *result.shape[axis + 1 :]))

        part = arrays | {key: read(arrays[key], axis) for key, axis in axes.items()}
        part_results = dict(results) | {key: resized(results[key], axis) for key, axis in result_axes.items()}
        return evaluate(function, part, arguments, part_results, inner, fill, {**starts, name: start})

    def add_part(start: ArrayLike, size: Size, totals: Arrays) -> Arrays:
        part = of_part(start, size)

        def added(key: str, total: jax.Array) -> jax.Array:
            if key not in result_axes:
                return total + part[key]
            return write_chunk(total, part[key].astype(total.dtype), (*[0] * result_axes[key], start))

        return {key: added(key, total) for key, total in totals.items()}

    def initial(key: str, value: float) -> jax.Array:
        result = results[key]
        if key not in result_axes:
            return filled(like, result.shape, sum_dtype(result.dtype))
        return filled(like, result.shape, result.dtype, fill + value)

    return fold(add_part, total, length, {key: initial(key, k / len(results)) for k, key in enumerate(results)})
