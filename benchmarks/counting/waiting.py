"""Estimates how long warps wait: first one alone, from its machine code, then all that share a scheduler.

A warp alone issues its instructions in order. After each one it waits as many clocks as the instruction says, and
before each one for the scoreboards that it names: those of loads and other instructions of variable latency. A block
of the machine code starts with what its most frequent predecessor left in flight.

The warps of a scheduler are a closed queueing network: one queue, whose service is what binds the kernel, and a delay,
in which a warp alone would wait. Mean-value analysis gives its throughput (Reiser and Lavenberg, "Mean-Value Analysis
of Closed Multichain Queuing Networks", Journal of the ACM 27, 1980). Warps do not wait for each other at barriers here.

Latencies of an H100, which are assumed for all architectures: Luo and others, "Benchmarking and Dissecting the Nvidia
Hopper GPU Architecture via Microbenchmarking", arXiv 2402.13499. All others are assumptions.
"""

import re

from benchmarks.counting.sass import NO_SCOREBOARD

# Clocks from issue to result, by opcode.
LATENCIES = {
    r"LDGSTS|LDG|LD\.|ATOMG|RED": 263,  # global loads are assumed to hit the L2 cache
    r"LDS|STS|ATOMS": 29,
    r"LDC|ULDC": 40,
    "": 24,  # of shuffles, conversions and special functions
}
OPERANDS = 20  # clocks from issue until operands are read
SWEEPS = 16  # over the blocks, until their times no longer change


def alone(blocks, executions, mma_clocks):
    """The clocks of all warps together, if each was alone on its scheduler.

    `mma_clocks`: of a scheduler for one tensor core instruction.
    """
    predecessors = [[k for k, block in enumerate(blocks) if n in block.successors] for n in range(len(blocks))]
    usual = [max(found, key=executions.__getitem__, default=None) for found in predecessors]
    clocks, left = [0.0] * len(blocks), [{} for _ in blocks]
    for _ in range(SWEEPS):
        for k, block in enumerate(blocks):
            if executions[k]:
                clocks[k], left[k] = _run(block, {} if usual[k] is None else left[usual[k]], mma_clocks)
    return sum(count * time for count, time in zip(executions, clocks, strict=True))


def together(service, delay, warps):
    """The clocks per unit of work if each of the warps needs the delay and the service, which only one can have."""
    queued = 0.0
    for number in range(1, warps + 1):
        response = service * (1 + queued)
        queued = number * response / (delay + response)
    return (delay + response) / warps


def _run(block, in_flight, mma_clocks):
    """The clocks of a block, and what is in flight after it: until when, in clocks from then.

    Keys are scoreboards, "copies" for all asynchronous copies, and "tensor" for the tensor core.
    """
    now, ends = 0.0, dict(in_flight)
    for one in block.instructions:
        is_mma = re.match(r"[HIQ]G?MMA\.", one.opcode)
        awaited = set(one.awaited)
        awaited |= {"copies"} if one.opcode.startswith("DEPBAR") else set()
        awaited |= {"tensor"} if is_mma else set()
        now = max([now, *(ends.get(key, 0) for key in awaited)])
        latency = next(clocks for pattern, clocks in LATENCIES.items() if re.match(pattern, one.opcode))
        started = {one.result_scoreboard: latency, one.operands_scoreboard: OPERANDS}
        started |= {"copies": latency} if one.opcode.startswith("LDGSTS") else {}
        started |= {"tensor": mma_clocks} if is_mma else {}
        for key, clocks in started.items():
            if key != NO_SCOREBOARD:
                ends[key] = max(ends.get(key, 0), now + clocks)
        now += one.stall
    return now, {key: end - now for key, end in ends.items() if end > now}
