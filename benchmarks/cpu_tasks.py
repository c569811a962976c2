"""`python -m benchmarks.cpu_tasks`: how well the fused CPU kernels would occupy up to 64 threads, simulated.

Two threads are measured too. It writes benchmarks/results/<date>-cpu-tasks.md.
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

# The tasks of A and C are slices of channels. F has one slice, and its tasks are parts of the images.
MEASURED = {name: deform_conv.SHAPES[name] for name in "AC"}
MEASURED["F"] = deform_conv.SHAPES["F"]._replace(batch=16)
CALLS = 7  # in a turn of a process

ABOUT = (
    "**The figures for more than two threads are simulated.** They are speedups over one thread, with the tiles and "
    "the tasks into which the package divides a call. The simulation gives the next tile, or the next task of the "
    "gradients, to the thread that is free first. The cost is the number of pixels times the channels of "
    "the task. A task waits where it adds to the gradient of an offset after another "
    "task. All threads are equally fast: memory bandwidth, shared caches, clock rates, packing the weight and adding "
    "up the parts of its gradient are left out. So the figures show what the division of the work allows, and not "
    "what a processor reaches."
)
ABOUT_MEASURED = (
    "Programs of the public functions, in one process with one processor and one with two, which take turns. The "
    "speedup is the median of the ratios of their times. It includes packing and adding up."
)
NOTATION = (
    '"Tasks": how many there are, and after a slash how many of them may run at a time if that is fewer. "im2col": the '
    "fused kernels do not run, and XLA divides most of the work."
)


class Problem(ctypes.Structure):
    """The struct of cpu_tasks.cc."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("kernel", "images", "height", "width", "channels", "rows", "columns", "features", "groups"),
            *("offset_groups", "is_bfloat16"),
            *("x_requested", "positions_requested", "weight_requested"),
        )
    ]


class Simulated(NamedTuple):
    tasks: int  # or tiles of the forward
    slots: int  # how many of them may run at a time
    speedups: tuple[float, ...]  # over one thread, for each number of threads


class Measured(NamedTuple):
    seconds: float  # with one thread
    speedup: float  # with two threads


def simulate(shape, dtype, pass_, threads=THREADS):
    """The simulated speedups of a pass, or None if the im2col path computes everything."""
    fused = fused_names(shape, dtype)
    requested = fused - {FORWARD} if pass_ == GRADIENTS else set()
    if not (requested or (pass_ == FORWARD and FORWARD in fused)):
        return None
    problem = Problem(
        kernel=KERNEL,
        images=shape.batch,
        **dict(zip(("rows", "columns"), deform_conv.output_size(shape)[1:], strict=True)),
        **{name: getattr(shape, name) for name in ("height", "width", "channels", "features", "groups")},
        offset_groups=shape.offset_groups,
        is_bfloat16=dtype == "bfloat16",
        x_requested="x" in requested,
        positions_requested="offset" in requested or "mask" in requested,
        weight_requested="weight" in requested,
    )
    numbers = (1, *threads)
    array = ctypes.c_int64 * len(numbers)
    makespans, tasks, slots = array(), ctypes.c_int64(), ctypes.c_int64()
    library().Simulate(
        ctypes.byref(problem), len(numbers), array(*numbers), makespans, ctypes.byref(tasks), ctypes.byref(slots)
    )
    return Simulated(tasks.value, slots.value, tuple(makespans[0] / makespan for makespan in makespans[1:]))


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
    loaded.Simulate.restype = None
    loaded.Simulate.argtypes = [ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 4]
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
    problem = deform_conv.problem(shape, dtype)
    arguments = problem.operands, {}, problem.cotangent
    call = Call(partial(derivatives.compiled(pass_, None, problem, arguments), *arguments))
    call()
    return call


def sections(measured):
    """`measured`: by shape, type and pass."""
    yield paragraph(ABOUT)
    yield list_named({name: deform_conv.SHAPES[name]._replace(batch="batch") for name in NAMES})
    for pass_ in PASSES:
        tasks = "tiles" if pass_ == FORWARD else "tasks"
        yield f"## {pass_.capitalize()}, simulated\n\n{table(pass_, tasks)}"
    yield paragraph(NOTATION)
    if measured:
        yield f"## Two threads, measured\n\n{paragraph(ABOUT_MEASURED)}\n\n{measured_table(measured)}"


def table(pass_, tasks):
    rows = [["shape", "type", "batch", tasks, *(f"{n} threads" for n in THREADS[1:])]]
    for name in NAMES:
        for dtype in DTYPES:
            for batch in BATCHES:
                simulated = simulate(deform_conv.SHAPES[name]._replace(batch=batch), dtype, pass_)
                rows.append([name, dtype, str(batch), *cells(simulated)])
    return markdown(rows)


def cells(simulated):
    if simulated is None:
        return ["im2col", *["-"] * len(THREADS[1:])]
    limit = f" / {simulated.slots}" if simulated.slots < simulated.tasks else ""
    speedups = zip(THREADS, simulated.speedups, strict=True)
    return [f"{simulated.tasks}{limit}", *(f"{speedup:.2f}" for threads, speedup in speedups if threads > 1)]


def measured_table(measured):
    rows = [["shape", "type", "batch", "pass", "one thread, ms", "speedup measured", "simulated"]]
    for (name, dtype, pass_), result in measured.items():
        shape = MEASURED[name]
        (simulated,) = simulate(shape, dtype, pass_, [2]).speedups
        figures = [f"{result.seconds * 1e3:.1f}", f"{result.speedup:.2f}", f"{simulated:.2f}"]
        rows.append([name, dtype, str(shape.batch), pass_, *figures])
    return markdown(rows)


def main(arguments=None):
    options = parser("cpu_tasks", __doc__)
    options.add_argument("--rounds", type=int, default=5, help="how often the processes take turns; 0: only simulate")
    args = options.parse_args(arguments)
    measured = measure(args.rounds) if args.rounds else {}
    write_page(args.out, "cpu-tasks", "Threads of the fused CPU kernels", [facts(machine()), *sections(measured)])


if __name__ == "__main__":
    main()
