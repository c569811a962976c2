"""Implementations of an operator. Each prepares calls for a problem, or says why it does not support it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

PASSES = ("forward", "forward + backward")


class Unavailable(Exception):
    """Why a contender does not support a problem."""


class Problem(NamedTuple):
    operands: dict[str, jax.Array]
    varied: tuple[str, ...]  # the operands whose gradients "forward + backward" computes
    cotangent: jax.Array
    dtype: str
    options: dict[str, Any]  # static options, by the names that the contenders use


class Call(NamedTuple):
    start: Callable[[], Any]
    wait: Callable[[Any], Any]  # returns when the result of `start` is complete
    arrays: Callable[[Any], dict]  # of a result: "y", and gradients by the names of their operands
    held: Callable[
        [Callable], tuple[Any, int | None]
    ]  # calls a function and returns its result and its peak memory in bytes
    queued: bool = False  # whether a device queues calls that are started before the last one ends
    note: str = ""
    at: Callable[[Problem], dict] | None = None  # the arrays of the result for other operands

    def __call__(self):
        result = self.start()
        self.wait(result)
        return result


class Contender(NamedTuple):
    prepare: Callable[[Problem, bool], Call]  # the flag says whether to include the backward pass
    agrees_at: Callable[[Problem], Problem] | None = None  # where it must agree with jax_dcn; None: everywhere
    compiles: bool = True  # whether `prepare` compiles; it may then run in any thread
