"""The times of kernels on a GPU, by jax's profiler.

CUPTI, which it uses, traces the kernels of the whole process.
"""

import re
import statistics
import tempfile
import time
from bisect import bisect
from pathlib import Path

import jax

from benchmarks.support.cuda_tools import short_name

PAUSE = 0.005  # before each run; longer than the clocks of host and GPU differ in a trace
RUN = "run of a traced call "
OWN, IN_PACKAGE = "dcn::", "dcn::|3dcn"  # the beginning of the package's kernels; what their names have in a trace


def traced(calls, runs):
    """For each of the named calls, its runs: for each of these the (milliseconds, launches) of its kernels by name.

    They are empty without a GPU, or if the driver does not let CUPTI trace kernels; by default it does. Kernels in CUDA
    graphs are not seen: --xla_gpu_enable_command_buffer= keeps XLA from making graphs.
    """
    numbered = [(name, call) for name, call in calls.items() for _ in range(runs)]
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, 1
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for number, (_, call) in enumerate(numbered):
                time.sleep(PAUSE)
                with jax.profiler.TraceAnnotation(f"{RUN}{number}"):
                    call()
        of_runs = kernels_of_runs(Path(folder), len(numbered))
    return {name: [of_run for (one, _), of_run in zip(numbered, of_runs, strict=True) if one == name] for name in calls}


def kernels_of_runs(folder, runs):
    """The kernels of each run. A kernel is that of the last run that began before it did, since runs are awaited."""
    begins, kernels = {}, []
    for plane, line in lines(folder):
        if re.match(r"/device:GPU:\d+", plane.name):
            if line.name.startswith("Stream"):  # the other lines summarize the streams
                kernels += line.events
        else:
            begins |= {int(e.name.removeprefix(RUN)): e.start_ns for e in line.events if e.name.startswith(RUN)}
    begins = [begins[number] for number in range(runs)]
    found = [{} for _ in begins]
    for event in kernels:
        if run := bisect(begins, event.start_ns):
            name = f"{OWN}{short_name(event.name)}" if re.search(IN_PACKAGE, event.name) else event.name
            milliseconds, launches = found[run - 1].get(name, (0.0, 0))
            found[run - 1][name] = milliseconds + event.duration_ns * 1e-6, launches + 1
    return found


def lines(folder):
    """All lines of the profile in a folder, each after its plane."""
    for path in folder.rglob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                yield plane, line


def total(of_run):
    """The milliseconds of all kernels of a run, or None if it has none."""
    return sum(milliseconds for milliseconds, _ in of_run.values()) or None


def median(values):
    """The median of the numbers among the values, or None if there is none."""
    return statistics.median(numbers) if (numbers := [value for value in values if value is not None]) else None
