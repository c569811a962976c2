"""Merges batch dimensions, and loops over chunks of an axis, so that the workspace does not grow with its length."""

import math
from collections.abc import Callable
from typing import Any, TypeVar, overload

import jax
from jax import lax

Carry = TypeVar("Carry")
Size = Any  # an int, or a symbolic dimension of an exported function


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
    equal = (length for length in range(limit, limit // 2, -1) if total % length == 0)
    count = -(-total // limit)
    return next(equal, -(-total // max(count, 1)))


def fold(body: Callable[[Any, int, Carry], Carry], total: Size, size: int, carry: Carry) -> Carry:
    """`carry = body(start, length, carry)` over [0, total), in chunks of `size` and one for the remainder."""
    if isinstance(total, int) and total <= size:
        return body(0, total, carry) if total else carry
    count = total // size
    carry = lax.fori_loop(0, count, lambda n, carry: body(n * size, size, carry), carry)
    rest = total - count * size
    return body(count * size, rest, carry) if size > 1 and rest else carry
