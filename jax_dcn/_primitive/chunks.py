"""Batch dimensions as one axis, and loops over runs of it, each of which needs little however long the axis is."""

import math

from jax import lax


def flat(array, dimensions: int):
    """`array` with all but its last `dimensions` as one; None stays None."""
    if array is None:
        return None
    lead, rest = array.shape[:-dimensions], array.shape[-dimensions:]
    return array.reshape(math.prod(lead), *rest)


def balanced(total, most: int) -> int:
    """The length, at most `most`, of runs that cover `total`.

    Equal ones where these need not be shorter than half of `most`, for the last of unequal ones is compiled apart, with
    memory of its own; else as few as it takes.
    """
    if not isinstance(total, int):  # a symbolic dimension, of an exported function
        return 1
    most = max(min(total, most), 1)
    equal = (length for length in range(most, most // 2, -1) if total % length == 0)
    runs = -(-total // most)
    return next(equal, -(-total // max(runs, 1)))


def fold(body, total, size: int, carry):
    """`carry = body(start, length, carry)` over [0, total), in runs of `size` and what is left."""
    if isinstance(total, int) and total <= size:
        return body(0, total, carry) if total else carry
    runs = total // size
    carry = lax.fori_loop(0, runs, lambda n, carry: body(n * size, size, carry), carry)
    rest = total - runs * size
    return body(runs * size, rest, carry) if size > 1 and rest else carry
