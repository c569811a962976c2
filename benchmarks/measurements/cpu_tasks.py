"""How well the tasks of the fused CPU kernels occupy threads: simulated, and for two threads measured too."""

import ctypes
import itertools
import multiprocessing
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.baselines import Call, Unavailable
from benchmarks.measurements import deform_conv, derivatives
from benchmarks.measurements.timing import interleaved
from benchmarks.support import cached_build

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
            measured[name, dtype, pass_] = summary(turns)
    return measured


def summary(turns):
    return Measured(statistics.median(one for one, _ in turns), statistics.median(one / two for one, two in turns))


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
