"""Loops over parts of dimensions, and the evaluation of a function by them: the workspace is that of one part."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jax_dcn._primitive import jax_internals
from jax_dcn._primitive.chain import Arrays
from jax_dcn._primitive.partition import NamedArray, Names
from jax_dcn._primitive.promotion import sum_dtype

Carry = TypeVar("Carry")
Length = Any  # an int, or a symbolic dimension of an exported function
Starts = Mapping[str, ArrayLike]
# The limit of the samples of a part in derivatives of the reference, which hold several arrays of this size.
REFERENCE_BYTES = 2**19


def part_length(sample_bytes: Any) -> int:
    """How many queries or points fit in REFERENCE_BYTES, whose samples have `sample_bytes` each; at least one."""
    if not isinstance(sample_bytes, int):  # a symbolic dimension
        return 1
    return max(REFERENCE_BYTES // max(sample_bytes, 1), 1)


def balanced(total: Length, limit: int) -> int:
    """The length, at most `limit`, of parts that cover `total`.

    The parts are equal if they need not be shorter than half of `limit`, because a last part of another length is
    compiled separately and has a workspace of its own. Otherwise there are as few parts as possible.
    """
    if not isinstance(total, int):  # a symbolic dimension
        return 1
    limit = max(min(total, limit), 1)
    fewest = max(-(-total // limit), 1)
    # Tries the lengths from half of the limit on, or the numbers of parts that they give, whichever are fewer.
    if limit < 2 * fewest:
        equal = (length for length in range(limit, limit // 2, -1) if total % length == 0)
    else:
        counts = range(fewest, total // (limit // 2 + 1) + 1)
        equal = (total // count for count in counts if total % count == 0)
    return next(equal, -(-total // fewest))


def fold(
    body: Callable[[Any, int, Carry], Carry], total: Length, size: int, carry: Carry, first: ArrayLike = 0
) -> Carry:
    """`carry = body(start, length, carry)` over `total` from `first` on, in parts of `size` and one for the rest."""
    if isinstance(total, int) and total <= size:
        return body(first, total, carry) if total else carry
    count = total // size
    carry = lax.fori_loop(0, count, lambda n, carry: body(first + n * size, size, carry), carry)
    rest = total - count * size
    return body(first + count * size, rest, carry) if size > 1 and rest else carry


def filled(like: jax.Array, shape: Sequence[Length], dtype: DTypeLike, value: float = 0) -> jax.Array:
    """An array that varies over the mesh as `like` does, as the carry of a loop must."""
    # Without the barrier, XLA for GPUs makes one array for the loops of several layers that start from equal ones, and
    # copies it. `like` is part of the barrier, because XLA merges equal barriers.
    scalar, like = lax.optimization_barrier((jnp.asarray(value, dtype), like))
    return jax_internals.vary_alike([jnp.broadcast_to(scalar, shape), like])[0]


def empty(like: jax.Array, shape: Sequence[Length], dtype: DTypeLike) -> jax.Array:
    """An array whose elements are all to be written, which varies over the mesh as `like` does."""
    return jax_internals.vary_alike([lax.empty(tuple(shape), jnp.dtype(dtype)), like])[0]


def read_part(array: jax.Array, start: Sequence[ArrayLike], size: Sequence[Length]) -> jax.Array:
    """A part of the leading dimensions of `array`: `size` elements of each from `start` on."""
    # In a loop over `start`, the barrier keeps XLA from converting all of `array` to integers before the loop. `start`
    # itself is not taken from the barrier: XLA for GPUs may need to evaluate it, which fails at a barrier.
    array, _ = lax.optimization_barrier((array, start))
    sizes = (*size, *array.shape[len(size) :])
    return _as_integers(partial(lax.dynamic_slice, start_indices=_indices(array, start), slice_sizes=sizes), array)


def write_part(array: jax.Array, part: jax.Array, start: Sequence[ArrayLike]) -> jax.Array:
    return _as_integers(partial(lax.dynamic_update_slice, start_indices=_indices(array, start)), array, part)


def evaluate(
    function: Callable[[Arrays, Starts], Arrays],
    arrays: Arrays,
    arguments: Mapping[str, Names],
    results: Mapping[str, NamedArray],
    lengths: Sequence[tuple[str, Length]],
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

    def of_part(start: ArrayLike, size: Length) -> Arrays:
        def read(array: jax.Array, axis: int) -> jax.Array:
            return read_part(array, (*[0] * axis, start), (*array.shape[:axis], size))

        def resized(result: NamedArray, axis: int) -> NamedArray:
            return result._replace(shape=(*result.shape[:axis], size, *result.shape[axis + 1 :]))

        part = arrays | {key: read(arrays[key], axis) for key, axis in axes.items()}
        part_results = dict(results) | {key: resized(results[key], axis) for key, axis in result_axes.items()}
        return evaluate(function, part, arguments, part_results, inner, fill, {**starts, name: start})

    def add_part(start: ArrayLike, size: Length, totals: Arrays) -> Arrays:
        part = of_part(start, size)

        def added(key: str, total: jax.Array) -> jax.Array:
            if key not in result_axes:
                return total + part[key]
            return write_part(total, part[key].astype(total.dtype), (*[0] * result_axes[key], start))

        return {key: added(key, total) for key, total in totals.items()}

    def initial(key: str, value: float) -> jax.Array:
        result = results[key]
        if key not in result_axes:
            return filled(like, result.shape, sum_dtype(result.dtype))
        return filled(like, result.shape, result.dtype, fill + value)

    return fold(add_part, total, length, {key: initial(key, k / len(results)) for k, key in enumerate(results)})


def _indices(array: jax.Array, start: Sequence[ArrayLike]) -> tuple[ArrayLike, ...]:
    return (*start, *[0] * (array.ndim - len(start)))


def _as_integers(move: Any, *arrays: jax.Array) -> jax.Array:
    """`move(*arrays)`, with 16-bit floats moved as integers: XLA's CPU compiler would widen the whole array."""
    dtype = arrays[0].dtype
    if dtype.itemsize != 2:
        return move(*arrays)
    integers = (lax.bitcast_convert_type(array, jnp.uint16) for array in arrays)
    return lax.bitcast_convert_type(move(*integers), dtype)
