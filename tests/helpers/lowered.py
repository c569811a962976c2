"""Programs as jax lowers them for a platform that need not be here, for comparisons."""

import re
from collections import Counter

import jax

VALUE = re.compile(r"%\w+")
OPERATION = re.compile(r"\s*(%\w+) = .*[^{]$")  # on one line


def lowered_for(platform, function, *arguments):
    """The StableHLO text, without operations whose results nothing uses, and with values numbered in their order."""
    text = jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
    return "".join(map(_canonical, re.split(r"(?=func\.func)", text)))


def _canonical(function):
    kept, lines = function.splitlines(), []
    while len(kept) != len(lines):
        lines = kept
        uses = Counter(value for line in lines for value in VALUE.findall(line.split(" = ", 1)[-1]))
        kept = [line for line in lines if not (found := OPERATION.match(line)) or uses[found[1]]]
    names = {}
    return VALUE.sub(lambda found: names.setdefault(found[0], f"%v{len(names)}"), "\n".join(kept))
