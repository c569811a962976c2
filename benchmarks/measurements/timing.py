"""Compares the time of calls on a machine that other processes use too."""

import math
import statistics
import time

# A call that has taken SECONDS_EACH in total is timed again only up to LEAST_TURNS times, and not at all after
# LEAST_TURNS times SECONDS_EACH.
LEAST_TURNS = 3
SECONDS_EACH = 3.0
PAUSE = 0.005  # between turns, until threads that a library leaves spinning are idle
AWAKE = 0.02  # how long a call is repeated before it is timed, but at least one call
LONG = 1.0  # a call that takes longer is timed at once
QUEUE_SECONDS, LONGEST_QUEUE = 0.01, 50


def interleaved(calls, repeats):
    """The seconds per call of each of the named calls, which take turns and have each been called before.

    Because they take turns, a slow period of the machine affects all of them, and ratios of medians are more reliable
    than absolute times.
    """
    turns = {name: Turns(call) for name, call in calls.items()}
    seconds = {name: [] for name in calls}
    for turn in range(repeats):
        for name, of_call in turns.items():
            limit = SECONDS_EACH * (LEAST_TURNS if turn < LEAST_TURNS else 1)
            if sum(seconds[name]) * of_call.length < limit:
                seconds[name].append(of_call.next())
    return {name: summary(values) for name, values in seconds.items()}


class Turns:
    """The turns of a call that takes turns with others. Calls that a device queues are timed in groups of `length`,
    which hides the time to start them.

    After a pause, a processor is slow for some milliseconds, and starts threads late; and memory that a large call has
    given back to the system must be mapped again. Each turn therefore begins with calls that are not timed, until
    AWAKE has passed, as in a program that calls the same function again and again. Calls longer than LONG are not
    called twice.
    """

    def __init__(self, call):
        self.call, self.seconds = call, timed(call)
        self.length = min(math.ceil(QUEUE_SECONDS / self.seconds), LONGEST_QUEUE) if call.queued else 1

    def next(self):
        """The seconds per call of the next turn."""
        time.sleep(PAUSE)
        if self.seconds < LONG:
            wake(self.call)
        return timed(self.call, self.length)


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
