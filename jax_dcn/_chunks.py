"""Loops over runs of an axis, so that what a step of them needs stays small however long the axis is."""

from jax import lax


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
