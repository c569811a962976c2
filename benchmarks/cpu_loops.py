"""`python -m benchmarks.cpu_loops`: how well aggregation and pooling would occupy up to 64 threads of a CPU, simulated.

The handlers are compiled with a Device that runs each loop in one thread, times its iterations, and computes when they
would end in more threads. It writes benchmarks/results/<date>-cpu-loops.md.
"""

import contextlib
import ctypes
import hashlib
import itertools
import os
import platform
import shutil
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jax

from benchmarks.baselines import PASSES, Unavailable
from benchmarks.cpu_tasks import MEMORY_BANDWIDTH, THREAD_BANDWIDTH, THREADS
from benchmarks.measurements import aggregation, roi_pool
from benchmarks.reports.formatting import list_named, markdown, paragraph
from benchmarks.reports.report import facts, parser, write_page
from benchmarks.support import cached_build
from benchmarks.support.machine import machine
from jax_dcn._primitive.extension import modules

LIB = cached_build.ROOT / "lib"
SOURCES = Path(__file__).parent / "recorded_loops"
OPERATORS = (aggregation.ATTENTION, aggregation.DCNV3, roi_pool.PSROI_POOL, roi_pool.ROI_ALIGN)
DTYPES = "float32", "bfloat16"
INSTRUCTION_SETS = "portable", "avx2", "avx512"
# As CMakeLists.txt compiles the kernels.
FLAGS = ["-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-DDCN_CPU", "-Wno-psabi"]
KERNEL_FLAGS = ["-fno-trapping-math", "-Wno-maybe-uninitialized"]
UNCONTRACTED = {"roi_max_pool", "roi_pool", "sample_taps", "tap_corners"}
ABOUT = (
    "**Simulated, in one thread.** The package's own code divides a call among so many threads. "
    "Its tasks run one after another in one thread and are timed, and the speedup is computed from these "
    "times: the thread that is free first takes the next task, and what is outside of the loops runs in one thread. A "
    "call also takes at least as long as its operands and results need from memory, each read or written once: at "
    f"{THREAD_BANDWIDTH / 1e9:.0f} GB/s for one thread and at {MEMORY_BANDWIDTH / 1e9:.1f} GB/s for all together, "
    "which is what eight channels of DDR4-3200 have. How long threads take to start, what they do to each other's "
    "caches and what XLA computes beside the kernels is not included. The medians of some calls."
)


class Times(NamedTuple):
    tasks: int
    seconds: float


def missing():
    """Why nothing can be recorded here, or an empty string."""
    if platform.machine() != "x86_64":
        return "compiles the kernels for x86-64 only"
    return "" if shutil.which("g++") else "needs g++"


def sources_with_recorded_loops():
    """A copy of lib/ with the Device of recorded_loops/. Its path depends on its contents, as caches of builds need."""
    device = SOURCES / "device.h"
    files = [device, *sorted(path for path in LIB.rglob("*") if path.is_file())]
    name = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]
    folder = cached_build.CACHE / f"recorded_loops_{name}"
    if not folder.exists():
        cached_build.CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached_build.CACHE) as temporary:
            copy = Path(shutil.copytree(LIB, Path(temporary) / "lib"))
            shutil.copy(device, copy / "cpu" / "device.h")
            with contextlib.suppress(OSError):  # another process was faster
                copy.rename(folder)
    return folder


NOT_CPU = ("module", "deform_conv_fused", "deform_conv_sorted")  # files of lib/ffi


@cache
def library():
    """The handlers of the CPU with the Device of recorded_loops/, registered under other names."""
    if reason := missing():
        raise Unavailable(reason)
    folder = sources_with_recorded_loops()
    include = [f"-I{folder}", f"-I{folder / 'cpu'}", f"-isystem{jax.ffi.include_dir()}"]
    headers = sorted(folder.rglob("*.h"))

    def compiled(path, flags):
        command = ["g++", *FLAGS, *flags, *include, "-c", path]
        return cached_build.build(f"{path.stem}.o", command, [path, *headers])

    sources = [
        *(path for path in sorted(folder.glob("ffi/*.cc")) if path.stem not in NOT_CPU),
        *(path for path in sorted(folder.glob("cpu/*.cc")) if path.stem != "device"),
        *(folder / "fused_rules.cc", SOURCES / "handlers.cc"),
    ]
    jobs = [(path, []) for path in sources] + [(path, KERNEL_FLAGS) for path in sorted(folder.glob("cpu/fused/*.cc"))]
    for path, name in itertools.product(sorted(folder.glob("cpu/kernels/*.cc")), INSTRUCTION_SETS):
        contracted = ["-ffp-contract=off"] if path.stem in UNCONTRACTED else []
        jobs.append((path, [*KERNEL_FLAGS, *contracted, f"-DDCN_INSTRUCTION_SET={name}"]))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda job: compiled(*job), jobs))
    loaded = ctypes.CDLL(str(cached_build.build("recorded_loops.so", ["g++", "-shared", *objects], objects)))
    loaded.FindHandler.restype = ctypes.c_void_p
    loaded.StartRecording.argtypes = [ctypes.c_int64]
    loaded.TakeTimes.restype = ctypes.c_int64
    for name in modules["cpu"].handlers:
        handler = jax.ffi.pycapsule(loaded.FindHandler(name.encode()))
        jax.ffi.register_ffi_target(f"recorded_{name}", handler, platform="cpu")
    return loaded


@contextlib.contextmanager
def recorded():
    """A context in which jax_dcn calls the recorded handlers."""
    library()
    real_call = jax.ffi.ffi_call
    calls = mock.patch.object(
        jax.ffi, "ffi_call", lambda name, *args, **kwargs: real_call(f"recorded_{name}", *args, **kwargs)
    )
    with calls:
        jax.clear_caches()
        try:
            yield
        finally:
            jax.clear_caches()


def times(call, threads, repeats):
    """The median of the simulated times of a call of recorded handlers."""
    serial, makespan = ctypes.c_double(), ctypes.c_double()
    found = []
    for _ in range(repeats):
        library().StartRecording(threads)
        call()
        tasks = library().TakeTimes(ctypes.byref(serial), ctypes.byref(makespan))
        found.append(serial.value + makespan.value)
    return Times(tasks, statistics.median(found))


def row(operator, shape, dtype, pass_, repeats):
    problem = operator.problem(shape, dtype)
    has_backward = pass_ != PASSES[0]
    call = operator.implementations["jax_dcn"].prepare(problem, has_backward)
    result = call()  # compiles
    size = sum(array.nbytes for array in (*problem.operands.values(), *result.values()))
    if has_backward:
        size += problem.cotangent.nbytes
    found = {threads: times(call, threads, repeats) for threads in THREADS}
    seconds = {
        threads: max(one.seconds, size / min(THREAD_BANDWIDTH * threads, MEMORY_BANDWIDTH))
        for threads, one in found.items()
    }
    speedups = [f"{seconds[1] / seconds[threads]:.2f}" for threads in THREADS[1:]]
    return [f"{seconds[1] * 1e3:.2f}", str(found[THREADS[-1]].tasks), *speedups]


def sections(repeats):
    yield paragraph(ABOUT)
    head = ["shape", "type", "pass", "one thread, ms", f"tasks for {THREADS[-1]}"]
    head += [f"{threads} threads" for threads in THREADS[1:]]
    with recorded():
        for operator in OPERATORS:
            rows = [head]
            for (name, shape), dtype, pass_ in itertools.product(operator.shapes.items(), DTYPES, PASSES):
                rows.append([name, dtype, pass_, *row(operator, shape, dtype, pass_, repeats)])
            yield f"## {operator.name}\n\n{list_named(operator.shapes)}\n\n{markdown(rows)}"


def main(arguments=None):
    options = parser("cpu_loops", __doc__)
    options.add_argument("--repeats", type=int, default=7, help="calls of which the median is taken")
    args = options.parse_args(arguments)
    if reason := missing():
        raise SystemExit(reason)
    page = [facts(machine()), *sections(args.repeats)]
    write_page(args.out, "cpu-loops", "Threads of aggregation and pooling on a CPU", page)


if __name__ == "__main__":
    main()
