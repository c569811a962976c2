"""Times calls against each other on a machine that others use too."""

import math
import statistics
import time

LEAST_TURNS = 3
SECONDS_EACH = 3.0  # a call that has taken this long in all takes no more turns than these, three times this long none
PAUSE = 0.005  # between turns: threads that a library leaves spinning come to rest
QUEUE_SECONDS, LONGEST_QUEUE = 0.01, 50


class Clock:
    """A time limit: work begun before it is finished."""

    def __init__(self, seconds=math.inf):
        self.end = time.monotonic() + seconds

    def over(self):
        return time.monotonic() >= self.end


def interleaved(calls, repeats):
    """Seconds a call of each of the named calls, which take turns and have each been called before.

    A slow spell of the machine so falls on all of them, and ratios of medians hold when absolute times do not. Calls
    that a device queues are timed several at once, so that starting them does not count where the device is busy.
    """
    lengths = {name: queue_length(call) for name, call in calls.items()}
    seconds = {name: [] for name in calls}
    for turn in range(repeats):
        for name, call in calls.items():
            limit = SECONDS_EACH * (LEAST_TURNS if turn < LEAST_TURNS else 1)
            if sum(seconds[name]) * lengths[name] < limit:
                time.sleep(PAUSE)
                seconds[name].append(timed(call, lengths[name]))
    return {name: summary(values) for name, values in seconds.items()}


def queue_length(call):
    return min(math.ceil(QUEUE_SECONDS / timed(call)), LONGEST_QUEUE) if call.queued else 1


def timed(call, times=1):
    start = time.perf_counter()
    for _ in range(times):
        result = call.start()
    call.wait(result)
    return (time.perf_counter() - start) / times


def summary(seconds):
    return {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds), "turns": len(seconds)}
