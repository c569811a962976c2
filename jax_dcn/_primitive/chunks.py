"""Merges batch dimensions, and loops over chunks of an axis, so that the workspace does not grow with its length."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jax_dcn._primitive import jax_internals
from jax_dcn._primitive.partition import Array, Names
from jax_dcn._primitive.promotion import sum_dtype

Arrays = dict[str, jax.Array]
Carry = TypeVar("Carry")
Size = Any  # an int, or a symbolic dimension of an exported function
Starts = Mapping[str, ArrayLike]


@overload
def flat(array: jax.Array, dimensions: int) -> jax.Array: ...
@overload
def flat(array: None, dimensions: int) -> None: ...


def flat(array: jax.Array | None, dimensions: int) -> jax.Array | None:
    """Merges all but the last `dimensions` dimensions of `array`. None stays None."""
    if array is None:
        return None
    leading, rest = array.shape[:-dimensions], array.shape[-dimensions:]
    return array.reshape(math.prod(leading), *rest)


def balanced(total: Size, limit: int) -> int:
    """The length, at most `limit`, of chunks that cover `total`.

    The chunks are equal if they need not be shorter than half of `limit`, because a last chunk of another length is
    compiled separately and has a workspace of its own. Otherwise there are as few chunks as possible.
    """
    if not isinstance(total, int):  # a symbolic dimension
        return 1
    limit = max(min(total, limit), 1)
    fewest = max(-(-total // limit), 1)
    # Tries the lengths from half of the limit on, or the numbers of chunks that they give, whichever are fewer.
    if limit < 2 * fewest:
        equal = (length for length in range(limit, limit // 2, -1) if total % length == 0)
    else:
        counts = range(fewest, total // (limit // 2 + 1) + 1)
        equal = (total // count for count in counts if total % count == 0)
    return next(equal, -(-total // fewest))


def fold(body: Callable[[Any, int, Carry], Carry], total: Size, size: int, carry: Carry, first: ArrayLike = 0) -> Carry:
    """`carry = body(start, length, carry)` over `total` from `first` on, in chunks of `size` and one for the rest."""
    if isinstance(total, int) and total <= size:
        return body(first, total, carry) if total else carry
    count = total // size
    carry = lax.fori_loop(0, count, lambda n, carry: body(first + n * size, size, carry), carry)
    rest = total - count * size
    return body(first + count * size, rest, carry) if size > 1 and rest else carry


def filled(like: jax.Array, shape: Sequence[Size], dtype: DTypeLike, value: float = 0) -> jax.Array:
    """An array that varies over the mesh as `like` does, as the carry of a loop must."""
    # Without the barrier, XLA for GPUs makes one array for the loops of several layers that start from equal ones, and
    # copies it. `like` is part of the barrier, because XLA merges equal barriers.
    scalar, like = lax.optimization_barrier((jnp.asarray(value, dtype), like))
    return jax_internals.vary_alike([jnp.broadcast_to(scalar, shape), like])[0]


def read_chunk(array: jax.Array, start: Sequence[ArrayLike], size: Sequence[Size]) -> jax.Array:
    """A chunk of the leading dimensions of `array`: `size` elements of each from `start` on."""
    # In a loop over `start`, the barrier keeps XLA from converting all of `array` to integers before the loop. `start`
    # itself is not taken from the barrier: XLA for GPUs may need to evaluate it, which fails at a barrier.
    array, _ = lax.optimization_barrier((array, start))
    sizes = (*size, *array.shape[len(size) :])
    return _as_integers(partial(lax.dynamic_slice, start_indices=_indices(array, start), slice_sizes=sizes), array)


def write_chunk(array: jax.Array, chunk: jax.Array, start: Sequence[ArrayLike]) -> jax.Array:
    return _as_integers(partial(lax.dynamic_update_slice, start_indices=_indices(array, start)), array, chunk)


def _indices(array: jax.Array, start: Sequence[ArrayLike]) -> tuple[ArrayLike, ...]:
    return (*start, *[0] * (array.ndim - len(start)))


def _as_integers(move: Any, *arrays: jax.Array) -> jax.Array:
    """`move(*arrays)`, with 16-bit floats moved as integers: XLA's CPU compiler would widen the whole array."""
    dtype = arrays[0].dtype
    if dtype.itemsize != 2:
        return move(*arrays)
    integers = (lax.bitcast_convert_type(array, jnp.uint16) for array in arrays)
    return lax.bitcast_convert_type(move(*integers), dtype)


def evaluate(
    function: Callable[[Arrays, Starts], Arrays],
    arrays: Arrays,
    arguments: Mapping[str, Names],
    results: Mapping[str, Array],
    lengths: Sequence[tuple[str, Size]],
    fill: int,
    starts: Starts | None = None,
) -> Arrays:
    """The results of `function`, evaluated in chunks of named dimensions.

    As in `partition`, dimensions of the same name are cut alike. An argument that lacks a name is passed whole, and a
    result that lacks it is the sum over the chunks.

    Args:
      function: `function(arrays, starts)` computes the results of a chunk from its arguments, in the dtype of sums. In
        the dimensions of a name the chunk begins at index `starts[name]`.
      arrays: the arguments.
      arguments: the names of their dimensions.
      results: the names, shapes and dtypes of the results. Sums are returned in the dtype of sums.
      lengths: names, from the outermost loop to the innermost, and the lengths of their chunks.
      fill: a positive number that differs from that of other derivatives in a program. Arrays that are overwritten
        start from it, each from another value: XLA for CPUs, which ignores the barrier of `filled`, would make one
        array for those that start from equal values, and copy it.
    """
    starts = starts or {}
    if not lengths:
        return function(arrays, starts)
    (name, length), *inner = lengths
    axes = {key: names.index(name) for key, names in arguments.items() if name in names}
    result_axes = {key: like.names.index(name) for key, like in results.items() if name in like.names}
    like = arrays[next(iter(axes))]
    total = like.shape[next(iter(axes.values()))]
    if isinstance(total, int) and total <= length:
        return evaluate(function, arrays, arguments, results, inner, fill, {**starts, name: 0})

    def add(start: ArrayLike, size: Size, outs: Arrays) -> Arrays:
        def read(array: jax.Array, axis: int) -> jax.Array:
            return read_chunk(array, (*[0] * axis, start), (*array.shape[:axis], size))

        def resized(array: Array, axis: int) -> Array:
            return array._replace(shape=(*array.shape[:axis], size, *array.shape[axis + 1 :]))

        parts = arrays | {key: read(arrays[key], axis) for key, axis in axes.items()}
        likes = dict(results) | {key: resized(results[key], axis) for key, axis in result_axes.items()}
        chunk = evaluate(function, parts, arguments, likes, inner, fill, {**starts, name: start})
        return {
            key: write_chunk(out, chunk[key].astype(out.dtype), (*[0] * result_axes[key], start))
            if key in result_axes
            else out + chunk[key]
            for key, out in outs.items()
        }

    def initial(key: str, value: float) -> jax.Array:
        result = results[key]
        if key not in result_axes:
            return filled(like, result.shape, sum_dtype(result.dtype))
        return filled(like, result.shape, result.dtype, fill + value)

    outs = {key: initial(key, k / len(results)) for k, key in enumerate(results)}
    return fold(add, total, length, outs)
