"""What a compiled program communicates between devices, read off its text."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

KINDS = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter", "collective-broadcast")
_CALL = re.compile(rf"= (.*?) ({'|'.join(KINDS)})(?:-start)?\(")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")


class Collective(NamedTuple):
    """One array that devices exchange: as a device has it afterwards."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


def collectives(compiled) -> list[Collective]:
    """Of a compiled function; those of a loop's body count once."""
    return list(_of_text(compiled.as_text()))


def _of_text(text: str) -> Iterator[Collective]:
    for results, kind in _CALL.findall(text):
        for dtype, bits, lengths in _ARRAY.findall(results):
            shape = tuple(map(int, filter(None, lengths.split(","))))
            yield Collective(kind, dtype, shape, math.prod(shape) * max(int(bits or 8) // 8, 1))
