"""Profiles kernels with NVIDIA's Nsight Compute (`ncu`) and reads its table of values."""

import csv
import re

from benchmarks.support.cuda_tools import short_name

SECTIONS = (
    "SpeedOfLight",  # time, clocks, throughput of the SMs, L1 and L2
    "MemoryWorkloadAnalysis",
    "SchedulerStats",
    "WarpStateStats",  # what warps wait for
    "Occupancy",
    "LaunchStats",
)
# The first launch of each gather of the convolution and of each kernel of the sort: context, stream, name, number.
LAUNCHES = "::regex:^(SampleColumns|OffsetCotangent|InputCotangent|Partition|SortBins)Kernel$:1"


def options():
    """Options of ncu; the program's command follows them."""
    sections = [word for section in SECTIONS for word in ("--section", section)]
    # ncu fixes the clocks by default, which not every machine allows.
    chosen = ["--kernel-id", LAUNCHES, "--clock-control", "none", *sections]
    chosen += ["--target-processes", "application-only"]  # not the compilers that XLA may start
    return [*chosen, "--print-details", "all", "--csv", "--page", "details"]


def read(text):
    """The launches of the table in ncu's output, in order: kernel, and (value, unit) of each metric.

    The output also has lines of ncu itself, which begin with ==, and of the program.
    """
    lines = text.splitlines()
    head = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    launches = {}
    for row in csv.DictReader(line for line in lines[head:] if line.startswith('"')):
        launch = launches.setdefault(row["ID"], {"kernel": kernel_name(row["Kernel Name"]), "metrics": {}})
        if row.get("Metric Name"):
            launch["metrics"][row["Metric Name"]] = (row["Metric Value"], row["Metric Unit"])
    return list(launches.values())


def kernel_name(shown):
    """The name as in the other tables: ncu writes `<unnamed>`, and the type of template arguments that are numbers."""
    return short_name(re.sub(r"\(\w+\)(?=-?\d)", "", shown.replace("<unnamed>", "(anonymous namespace)")))


def errors(text):
    """What ncu says went wrong, as when a user may not read the counters."""
    mark = "==ERROR== "
    return [line.removeprefix(mark) for line in text.splitlines() if line.startswith(mark)]
