"""Reads from the HLO text of a compiled program which collectives it executes."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

KINDS = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter", "collective-broadcast")
_CALL = re.compile(rf"= (.*?) ({'|'.join(KINDS)})(?:-start)?\(")
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
    _, *texts = _COMPUTATION.split(compiled.as_text())
    times = Counter({texts[-2]: 1})  # the entry computation comes last, and each computation before its callers
    found = []
    for name, text in zip(texts[-2::-2], texts[::-2], strict=True):
        for callee, trips in _CALLEE.findall(text):
            times[callee] += times[name] * int(trips or 1)
        found += max(times[name], 1) * list(_of_text(text))
    return found


def _of_text(text: str) -> Iterator[Collective]:
    for results, kind in _CALL.findall(text):
        for dtype, bits, lengths in _ARRAY.findall(results):
            shape = tuple(map(int, filter(None, lengths.split(","))))
            yield Collective(kind, dtype, shape, math.prod(shape) * max(int(bits or 8) // 8, 1))
