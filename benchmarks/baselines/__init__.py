"""Implementations that jax_dcn is compared with. Each prepares calls for a problem, or says why it cannot."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

PASSES = ("forward", "forward + backward")


class Unavailable(Exception):
    """The reason why an implementation does not support a problem."""


def summary_of(error: Exception) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


class Problem(NamedTuple):
    operands: dict[str, jax.Array]
    varied: tuple[str, ...]  # the operands whose gradients "forward + backward" computes
    cotangent: jax.Array
    dtype: str
    options: dict[str, Any]  # static options, by the names that the implementations use


class Call(NamedTuple):
    start: Callable[[], Any]
    wait: Callable[[Any], Any] = jax.block_until_ready  # returns when the result of `start` is complete
    arrays: Callable[[Any], dict] | None = None  # of a result: "y", and gradients by the names of their operands
    held: Callable[[Callable], tuple[Any, int | None]] | None = (
        None  # the result of a call, and its peak memory in bytes
    )
    queued: bool = False  # whether a device queues calls that are started before the last one ends
    note: str = ""
    at: Callable[[Problem], dict] | None = None  # the arrays of the result for other operands

    def __call__(self):
        result = self.start()
        self.wait(result)
        return result


class Implementation(NamedTuple):
    """jax_dcn, or a baseline."""

    prepare: Callable[[Problem, bool], Call]  # the flag says whether to include the backward pass
    agrees_at: Callable[[Problem], Problem] | None = None  # where it must agree with jax_dcn; None: everywhere
    compiles: bool = True  # whether `prepare` compiles; it may then run in any thread


class Operator(NamedTuple):
    """An operator with all its implementations, "jax_dcn" first, and shapes by name, the most important ones first."""

    name: str
    function: Callable[..., jax.Array]  # of the operands and options of a problem
    shapes: dict[str, Any]
    problem: Callable[[Any, str], Problem]  # of a shape and a type
    implementations: dict[str, Implementation]
    lower_bounds: tuple[str, ...] = ()  # the implementations that do only a part of the work

    def compared_with(self, baselines) -> dict[str, Implementation]:
        """jax_dcn and those of the named baselines that the operator has."""
        return {name: one for name, one in self.implementations.items() if name in ("jax_dcn", *baselines)}
