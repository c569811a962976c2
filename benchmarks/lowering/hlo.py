"""Reads from the HLO text of a compiled program which collectives it executes."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

KINDS = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter", "collective-broadcast")
# The result of an asynchronous one is that of its end: newer releases of XLA also name the operands at its start.
_CALL = re.compile(rf"= (.*?) ({'|'.join(KINDS)})(?:-done)?\(")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$", re.MULTILINE)
_CALLEE = re.compile(r"(?:to_apply|calls|condition|body)=%?([\w.-]+)(?=(?:.*known_trip_count\D*(\d+))?)")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")


class Collective(NamedTuple):
    """One array that devices exchange; shape and bytes are those of the result on one device."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


def collectives(compiled) -> list[Collective]:
    """The collectives of a compiled function; those in a loop once per trip, if the trip count is known."""
    return [one for text, times in _computations(compiled) for one in max(times, 1) * list(_of_text(text))]


def computations(program: str) -> tuple[str, dict[str, str]]:
    """What a program begins with, and the text of each computation by its name: the entry last, callees before."""
    head, *texts = _COMPUTATION.split(program)
    return head, dict(zip(texts[::2], texts[1::2], strict=True))


def _computations(compiled) -> Iterator[tuple[str, int]]:
    """The text of each computation, and how often it is executed, as far as trip counts are known."""
    _, texts = computations(compiled.as_text())
    times = Counter({[*texts][-1]: 1})
    for name, text in reversed(texts.items()):
        for callee, trips in _CALLEE.findall(text):
            times[callee] += times[name] * int(trips or 1)
        yield text, times[name]


def _of_text(text: str) -> Iterator[Collective]:
    for results, kind in _CALL.findall(text):
        for array in _ARRAY.findall(results):
            dtype, _, lengths = array
            yield Collective(kind, dtype, _shape(lengths), _bytes_of(array))


def array_bytes(types: str) -> int:
    """The bytes of all arrays in the text of a type."""
    return sum(map(_bytes_of, _ARRAY.findall(types)))


def _bytes_of(array: tuple[str, str, str]) -> int:
    _, bits, lengths = array
    return math.prod(_shape(lengths)) * max(int(bits or 8) // 8, 1)


def _shape(lengths: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, lengths.split(","))))
