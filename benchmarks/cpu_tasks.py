"""`python -m benchmarks.cpu_tasks`: how well the fused CPU kernels would occupy up to 64 threads, simulated.

The costs of the simulation are fitted to measurements with one thread, and its prediction for two threads is compared
with others. It writes benchmarks/results/<date>-cpu-tasks.md.
"""

import ctypes
import itertools
import multiprocessing
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.optimize

from benchmarks import derivatives
from benchmarks.baselines import Call, Unavailable
from benchmarks.measurements import deform_conv
from benchmarks.measurements.timing import interleaved
from benchmarks.reports.formatting import list_named, markdown, paragraph
from benchmarks.reports.report import facts, parser, write_page
from benchmarks.support import cached_build
from benchmarks.support.machine import machine

SOURCE = Path(__file__).with_suffix(".cc")
LIB = cached_build.ROOT / "lib"
KERNEL = 3  # height and width of the windows

NAMES, BATCHES, DTYPES = "ABCDEFG", (1, 2, 16), ("float32", "bfloat16")
FORWARD, GRADIENTS = PASSES = ("forward", "gradients")
THREADS = (1, 2, 4, 8, 16, 32, 64)

MEASURED = {name: deform_conv.SHAPES[name] for name in "ABCDG"}
MEASURED["F"] = deform_conv.SHAPES["F"]._replace(batch=16)
CALLS = 5  # in a turn of a process

COSTS = ("multiply-add", "channel of a sample", "float that is copied or added")
COPIED = 1 << 20  # floats, which do not fit into an L2 cache
# Bytes per second that one thread, and all threads of a processor with eight channels of DDR4-3200, read or write.
THREAD_BANDWIDTH, MEMORY_BANDWIDTH = 20e9, 204.8e9

ABOUT = (
    "**The figures for more than two threads are simulated.** They are speedups over one thread, with the tiles and "
    "the tasks into which the package divides a call. The thread that is free first takes the next task, and a task "
    "waits for earlier ones as in the package: before it adds to the gradients of an offset and of the weight, tap by "
    "tap, and before it adds its window to the gradient of x. Windows, rounding, copying the weight and adding up the "
    "partial sums of its gradient are included. Two costs of the simulation, in the first table, are fitted to the "
    "times of one thread. That of a copied float is the time of an addition of large arrays in numpy, and locating a "
    "sample costs as much as 20 of its channels, as in a profile of A. All threads are equally fast. A call also takes "
    "at least as long as its arrays need from memory: each once for every slice of channels that reads it, at 20 GB/s "
    "for one thread and at 204.8 GB/s for all together, which is what eight channels of DDR4-3200 have."
)
ABOUT_MEASURED = (
    "Programs of the public functions, in one process with one processor and one with two, which take turns. The "
    "speedup is the median of the ratios of their times. The times of one thread are those that the costs are fitted "
    "to."
)


class Problem(ctypes.Structure):
    """The struct of cpu_tasks.cc."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *(
                "kernel",
                "stride",
                "dilation",
                "images",
                "height",
                "width",
                "channels",
                "rows",
                "columns",
                "features",
                "groups",
            ),
            *("offset_groups", "is_bfloat16"),
            *("x_requested", "positions_requested", "weight_requested"),
        )
    ]


class Simulated(NamedTuple):
    tasks: int  # or tiles of the forward
    seconds: tuple[float, ...]  # for each number of threads


class Measured(NamedTuple):
    seconds: float  # with one thread
    speedup: float  # with two threads


def simulate(shape, dtype, pass_, costs, threads=THREADS):
    """A pass with some numbers of threads, or None if the im2col path computes everything."""
    fused = fused_names(shape, dtype)
    requested = fused - {FORWARD} if pass_ == GRADIENTS else set()
    if not (requested or (pass_ == FORWARD and FORWARD in fused)):
        return None
    sizes = ("height", "width", "channels", "features", "groups", "stride", "dilation")
    problem = Problem(
        kernel=KERNEL,
        images=shape.batch,
        **dict(zip(("rows", "columns"), deform_conv.output_size(shape)[1:], strict=True)),
        **{name: getattr(shape, name) for name in sizes},
        offset_groups=shape.offset_groups,
        is_bfloat16=dtype == "bfloat16",
        x_requested="x" in requested,
        positions_requested="offset" in requested or "mask" in requested,
        weight_requested="weight" in requested,
    )
    makespans = (ctypes.c_double * len(threads))()
    tasks = library().Simulate(
        ctypes.byref(problem),
        (ctypes.c_double * len(COSTS))(*costs),
        len(threads),
        (ctypes.c_int64 * len(threads))(*threads),
        makespans,
    )
    size = memory_bytes(shape, dtype, pass_)
    bandwidths = [min(THREAD_BANDWIDTH * number, MEMORY_BANDWIDTH) for number in threads]
    return Simulated(tasks, tuple(map(max, makespans, (size / bandwidth for bandwidth in bandwidths))))


def memory_bytes(shape, dtype, pass_):
    """What a pass reads and writes, each array once for every slice of channels that it is read for."""
    itemsize = jnp.dtype(dtype).itemsize
    batch, rows, columns = deform_conv.output_size(shape)
    pixels = batch * rows * columns
    x = shape.batch * shape.height * shape.width * shape.channels * itemsize
    y = pixels * shape.features * itemsize
    positions = pixels * 3 * KERNEL**2 * shape.offset_groups * 4
    if pass_ == FORWARD:
        return x + positions + y
    slices = max(1, shape.channels // shape.groups // library().MaxSliceChannels())
    return 2 * x + positions + slices * (positions / min(slices, shape.offset_groups) + y)


def fitted_costs(measured, copy):
    """The costs in seconds by type and pass, with the least relative error of the times of one thread."""
    costs = {}
    for dtype, pass_ in itertools.product(DTYPES, PASSES):
        shapes = [name for name in MEASURED if (name, dtype, pass_) in measured]
        seconds = np.array([measured[name, dtype, pass_].seconds for name in shapes])
        units = np.eye(len(COSTS))
        counts = [[simulate(MEASURED[name], dtype, pass_, unit, [1]).seconds[0] for unit in units] for name in shapes]
        counts = np.array(counts) / seconds[:, None]
        fitted, _ = scipy.optimize.nnls(counts[:, :2], 1 - copy * counts[:, 2])
        costs[dtype, pass_] = (*fitted, copy)
    return costs


def fused_names(shape, dtype):
    """The forward and the operands whose gradients the fused path computes."""
    plan = deform_conv.plan(shape, dtype, platform="cpu")
    return {name for name in (FORWARD, *deform_conv.VARIED) if plan[name].path == "fused"}


@cache
def library():
    command = ["g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{LIB}", f"-I{LIB / 'cpu'}"]
    sources = [SOURCE, *(LIB / "cpu" / f"{name}.cc" for name in ("fused/plan", "instruction_sets"))]
    try:
        built = cached_build.build("cpu_tasks.so", [*command, *sources], [*sources, *sorted(LIB.glob("**/*.h"))])
    except OSError as error:
        raise Unavailable("needs g++") from error
    loaded = ctypes.CDLL(str(built))
    loaded.Simulate.restype = loaded.MaxSliceChannels.restype = ctypes.c_int64
    loaded.Simulate.argtypes = [*[ctypes.c_void_p] * 2, ctypes.c_int64, *[ctypes.c_void_p] * 2]
    return loaded


def measure(rounds):
    """The speedups by shape, type and pass. Processes with one and with two threads take turns."""
    processors = sorted(os.sched_getaffinity(0))[:2]
    if len(processors) < 2:
        raise Unavailable("needs two processors")
    measured = {}
    # XLA has as many threads as there are processors on which the process may run.
    with process_on(processors[:1]) as one, process_on(processors) as two:
        for name, dtype, pass_ in itertools.product(MEASURED, DTYPES, PASSES):
            call = seconds, MEASURED[name], dtype, pass_
            turns = [[process.submit(*call).result() for process in (one, two)] for _ in range(rounds)]
            speedup = statistics.median(one / two for one, two in turns)
            measured[name, dtype, pass_] = Measured(statistics.median(one for one, _ in turns), speedup)
    return measured


def process_on(processors):
    spawn = multiprocessing.get_context("spawn")  # a copy of this process would have the threads of this one's XLA
    return ProcessPoolExecutor(1, spawn, os.sched_setaffinity, (0, processors))


def seconds(shape, dtype, pass_):
    """The median of some calls in this process."""
    return interleaved({pass_: prepared(shape, dtype, pass_)}, CALLS)[pass_]["median"]


@cache
def prepared(shape, dtype, pass_):
    return derivatives.prepared(pass_, None, deform_conv.problem(shape, dtype))


def copy_cost():
    """The seconds that a float takes which is added to another one."""
    sums, numbers = np.zeros(COPIED, np.float32), np.ones(COPIED, np.float32)
    add = Call(partial(np.add, sums, numbers, out=sums), wait=lambda _: None)
    add()
    return interleaved({"add": add}, CALLS)["add"]["median"] / COPIED


def sections(measured):
    """`measured`: by shape, type and pass."""
    costs = fitted_costs(measured, copy_cost())
    yield paragraph(ABOUT)
    yield costs_table(costs)
    yield list_named({name: deform_conv.SHAPES[name]._replace(batch="batch") for name in NAMES})
    for pass_ in PASSES:
        yield f"## {pass_.capitalize()}, simulated\n\n{table(pass_, costs)}"
    yield f"## One and two threads, measured\n\n{paragraph(ABOUT_MEASURED)}\n\n{measured_table(measured, costs)}"


def costs_table(costs):
    rows = [["cost in picoseconds", *(f"{dtype}, {pass_}" for dtype, pass_ in costs)]]
    for i, name in enumerate(COSTS):
        rows.append([name, *(f"{one[i] * 1e12:.3g}" for one in costs.values())])
    return markdown(rows)


def table(pass_, costs):
    tasks = "tiles" if pass_ == FORWARD else "tasks"
    rows = [["shape", "type", "batch", tasks, *(f"{n} threads" for n in THREADS[1:])]]
    for name, dtype, batch in itertools.product(NAMES, DTYPES, BATCHES):
        shape = deform_conv.SHAPES[name]._replace(batch=batch)
        rows.append([name, dtype, str(batch), *cells(simulate(shape, dtype, pass_, costs[dtype, pass_]))])
    return markdown(rows)


def cells(simulated):
    if simulated is None:
        return ["im2col", *["-"] * len(THREADS[1:])]
    one, *others = simulated.seconds
    return [str(simulated.tasks), *(f"{one / seconds:.2f}" for seconds in others)]


def measured_table(measured, costs):
    rows = [["shape", "type", "batch", "pass", "one thread, ms", "fitted", "speedup of two", "simulated"]]
    for (name, dtype, pass_), result in measured.items():
        shape = MEASURED[name]
        one, two = simulate(shape, dtype, pass_, costs[dtype, pass_], [1, 2]).seconds
        figures = [f"{result.seconds * 1e3:.1f}", f"{one * 1e3:.1f}", f"{result.speedup:.2f}", f"{one / two:.2f}"]
        rows.append([name, dtype, str(shape.batch), pass_, *figures])
    return markdown(rows)


def main(arguments=None):
    options = parser("cpu_tasks", __doc__)
    options.add_argument("--rounds", type=int, default=5, help="how often the processes take turns")
    args = options.parse_args(arguments)
    page = [facts(machine()), *sections(measure(args.rounds))]
    write_page(args.out, "cpu-tasks", "Threads of the fused CPU kernels", page)


if __name__ == "__main__":
    main()
