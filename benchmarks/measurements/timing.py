"""Compares the time of calls on a machine that other processes use too."""

import math
import statistics
import time

# A call that has taken `seconds_each` in total is timed again only up to LEAST_TURNS times, and not at all after
# LEAST_TURNS times `seconds_each`.
LEAST_TURNS = 3
SECONDS_EACH = 3.0  # by default
PAUSE = 0.005  # between turns, until threads that a library leaves spinning are idle
AWAKE = 0.02  # how long a call is repeated before it is timed, but at least one call
LONG = 1.0  # a call that takes longer is timed at once
QUEUE_SECONDS, LONGEST_QUEUE = 0.01, 50


def interleaved(calls, repeats, seconds_each=SECONDS_EACH):
    """The seconds per call of each of the named calls, which take turns and have each been called before.

    Because they take turns, a slow period of the machine affects all of them, and ratios of medians are more reliable
    than absolute times. Calls that a device queues are timed in groups, which hides the time to start them.

    After a pause, a processor is slow for some milliseconds, and starts threads late; and memory that a large call has
    given back to the system must be mapped again. Each turn therefore begins with calls that are not timed, until
    AWAKE has passed, as in a program that calls the same function again and again. Calls longer than LONG are not
    called twice.
    """
    seconds_of_call = {name: timed(call) for name, call in calls.items()}
    queued = {name: min(math.ceil(QUEUE_SECONDS / one), LONGEST_QUEUE) for name, one in seconds_of_call.items()}
    lengths = {name: queued[name] if call.queued else 1 for name, call in calls.items()}
    seconds = {name: [] for name in calls}
    for turn in range(repeats):
        for name, call in calls.items():
            limit = seconds_each * (LEAST_TURNS if turn < LEAST_TURNS else 1)
            if sum(seconds[name]) * lengths[name] < limit:
                time.sleep(PAUSE)
                if seconds_of_call[name] < LONG:
                    wake(call)
                seconds[name].append(timed(call, lengths[name]))
    return {name: summary(values) for name, values in seconds.items()}


def wake(call):
    end = time.monotonic() + AWAKE
    call.wait(call.start())
    while time.monotonic() < end:
        call.wait(call.start())


def timed(call, times=1):
    start = time.perf_counter()
    for _ in range(times):
        result = call.start()
    call.wait(result)
    return (time.perf_counter() - start) / times


def summary(seconds):
    return {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds), "turns": len(seconds)}
