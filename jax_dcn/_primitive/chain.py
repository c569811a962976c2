"""Chains of differentiation steps: which function of its arguments the primitive of an operator represents.

    ()             operands → result
    jvp            operands, tangents → tangent of the result
    vjp            operands, cotangent → cotangents of operands
    vjp, jvp …     each further step differentiates the function that the steps before it make

Each argument and each result of this function has a name and a role. The role is the name of the operand whose shape it
has, or `RESULT` if it has the shape of the result. It determines how the array is batched, typed, sharded and cut.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax

from jax_dcn._types import Backend

RESULT = "result"

Arrays = dict[str, jax.Array]
Roles = dict[str, str]  # roles by the names of arrays
Mode = Literal["jvp", "vjp"]


class Step(NamedTuple):
    """Differentiates a function with respect to some of its arguments, which it names.

    "jvp" appends their tangents to the arguments, and its results are the tangents of the function's results. "vjp"
    appends the cotangents of the function's results to the arguments, and its results are the cotangents of the named
    arguments.
    """

    mode: Mode
    arguments: tuple[str, ...]


Chain = tuple[Step, ...]


class Signature(NamedTuple):
    """The roles of the arguments and of the results of a function, by name and in order."""

    arguments: Roles
    results: Roles


class Params(NamedTuple):
    """The static parameters of an operator's primitive.

    present: the names of the operands that are passed, in order. spec: the static parameters of the operator.
    """

    present: tuple[str, ...]
    chain: Chain
    spec: Any
    backend: Backend

    @property
    def signature(self) -> Signature:
        arguments, results = {name: name for name in self.present}, {RESULT: RESULT}
        for depth, (mode, names) in enumerate(self.chain):
            active = {name: arguments[name] for name in names}
            if mode == "jvp":
                arguments |= {tangent_name(name, depth): role for name, role in active.items()}
            else:
                arguments |= {cotangent_name(name, depth): role for name, role in results.items()}
                results = active
        return Signature(arguments, results)

    @property
    def before_last_step(self) -> "Params":
        return self._replace(chain=self.chain[:-1])

    def then(self, mode: Mode, arguments: tuple[str, ...]) -> "Params":
        return self._replace(chain=(*self.chain, Step(mode, arguments)))


def tangent_name(name: str, depth: int) -> str:
    """The name of the tangent that a step appends. The number of steps before it makes the name unique."""
    return f"tangent {depth} of {name}"


def cotangent_name(name: str, depth: int) -> str:
    return f"cotangent {depth} of {name}"


def differentiated(function: Callable[[Arrays], Arrays], chain: Chain) -> Callable[[Arrays], Arrays]:
    """Applies the steps of a chain to a function from arrays by name to arrays by name."""
    if not chain:
        return function
    *earlier, (mode, names) = chain
    before, depth = differentiated(function, tuple(earlier)), len(earlier)

    def derivative(arguments: Arrays) -> Arrays:
        def of_active(active: Arrays) -> Arrays:
            return before(arguments | active)

        active = {name: arguments[name] for name in names}
        if mode == "jvp":
            tangents = {name: arguments[tangent_name(name, depth)] for name in names}
            return jax.jvp(of_active, (active,), (tangents,))[1]
        results, pull_back = jax.vjp(of_active, active)
        return pull_back({name: arguments[cotangent_name(name, depth)] for name in results})[0]

    return derivative
