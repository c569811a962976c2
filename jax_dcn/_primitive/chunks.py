"""Loops over chunks of an axis, so that the workspace does not grow with its length."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jax_dcn._primitive import jax_internals

Carry = TypeVar("Carry")
Size = Any  # an int, or a symbolic dimension of an exported function


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
