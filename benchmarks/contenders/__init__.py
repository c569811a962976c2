"""What computes an operator: each contender prepares calls of a problem, or says why it does not take it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

PASSES = ("forward", "forward + backward")


class Unavailable(Exception):
    """Why a contender does not take a problem."""


class Problem(NamedTuple):
    operands: dict[str, jax.Array]
    varied: tuple[str, ...]  # the operands that "forward + backward" takes gradients of
    cotangent: jax.Array
    dtype: str
    options: dict[str, Any]  # static ones, in the operator's own terms


class Call(NamedTuple):
    start: Callable[[], Any]
    wait: Callable[[Any], Any]  # returns when the result of `start` is there
    arrays: Callable[[Any], dict]  # of a result: "y", and gradients by their operands' names
    held: Callable[[Callable], tuple[Any, int | None]]  # calls a function: its result, and the bytes it held
    queued: bool = False  # whether a device runs one call after another while more are started
    note: str = ""
    at: Callable[[Problem], dict] | None = None  # `arrays` of the result for other operands

    def __call__(self):
        result = self.start()
        self.wait(result)
        return result


class Contender(NamedTuple):
    prepare: Callable[[Problem, bool], Call]  # whether with the backward pass
    agrees_at: Callable[[Problem], Problem] | None = None  # where its results are to be jax_dcn's; None: everywhere
    compiles: bool = True  # `prepare` may run in any thread, and gains by it
