"""Times functions against each other on a machine that others use too."""

import statistics
import time

import jax


def interleaved(functions, repeats):
    """Seconds a call of each of the named functions of no arguments: they take turns, after one call that is not timed.

    A slow spell of the machine so falls on all of them, and ratios of medians hold when absolute times do not.
    """
    for function in functions.values():
        jax.block_until_ready(function())
    seconds = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function())
            seconds[name].append(time.perf_counter() - start)
    return seconds


def summary(seconds):
    ordered = sorted(seconds)
    return {"median": statistics.median(ordered), "min": ordered[0], "max": ordered[-1]}
