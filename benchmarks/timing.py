"""Times functions against each other on a machine that others use too."""

import statistics
import time
from functools import partial

import jax


def compile_for(function, *operands):
    """A call of no arguments, and the bytes that it holds besides operands and results."""
    compiled = jax.jit(function).lower(*operands).compile()
    return partial(compiled, *operands), compiled.memory_analysis().temp_size_in_bytes


def interleaved(functions, repeats, limit=float("inf")):
    """Seconds a call of each of the named functions of no arguments: they take turns, after one call that is not timed.

    A slow spell of the machine so falls on all of them, and ratios of medians hold when absolute times do not. After
    three turns, none begins once `limit` seconds are over.
    """
    for function in functions.values():
        jax.block_until_ready(function())
    seconds = {name: [] for name in functions}
    begin = time.perf_counter()
    for turn in range(repeats):
        if turn >= 3 and time.perf_counter() - begin > limit:
            break
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function())
            seconds[name].append(time.perf_counter() - start)
    return seconds


def summary(seconds):
    ordered = sorted(seconds)
    return {"median": statistics.median(ordered), "min": ordered[0], "max": ordered[-1], "calls": len(ordered)}


def shown(summary):
    return f"{summary['median'] * 1e3:.0f} ({summary['min'] * 1e3:.0f} to {summary['max'] * 1e3:.0f})"
