"""Tables of the times of custom calls: measured, beside the estimates, and as a profiler saw them."""

import re

from benchmarks.reports.formatting import digits, markdown


def measured_table(rows):
    body = ([row["shape"], f"`{row['call']}`", kernel_milliseconds(row), program_milliseconds(row)] for row in rows)
    return markdown([["shape", "custom call", "kernels, ms", "program, ms"], *body])


def compared_table(rows):
    """Rows of `kernel_times.measure`, each with "estimate": a dictionary, or None."""
    head = ["shape", "custom call", "kernels, ms", "estimate, ms", "measured / estimate", "bound by", "program, ms"]
    return markdown([head, *map(compared, rows)])


def compared(row):
    estimate, shown = row["estimate"], ["-", "-", "-"]
    if estimate:
        milliseconds = estimate["milliseconds"]
        shown = [digits(milliseconds), ratio(row["milliseconds"], milliseconds, estimate), estimate["bound_by"]]
    return [row["shape"], f"`{row['call']}`", kernel_milliseconds(row), *shown, program_milliseconds(row)]


def kernels_table(rows):
    """The same rows kernel by kernel: those of the package that were measured or estimated."""
    head = ["shape", "kernel", "launches", "measured, ms", "estimate, ms", "measured / estimate"]
    return markdown([head, *(line for row in rows for line in kernel_lines(row))])


def kernel_lines(row):
    measured = {name: kernel for name, kernel in row["kernels"].items() if kernel["own"]}
    estimated = row["estimate"]["kernels"] if row["estimate"] else {}
    for name in dict.fromkeys([*measured, *estimated]):
        found, expected = measured.get(name), estimated.get(name)
        yield [
            row["shape"],
            f"`{name}`",
            f"{found['launches']:g}" if found else "-",
            digits(found["milliseconds"]) if found else "-",
            digits(expected) if expected is not None else "-",
            ratio(found and found["milliseconds"], expected, row["estimate"]),
        ]


def ratio(measured, expected, estimate):
    """The ratio, where the estimate is for the GPU that was measured."""
    return digits(measured / expected) if measured and expected and estimate["is_of_this_gpu"] else "-"


def kernel_milliseconds(row):
    return "-" if row["milliseconds"] is None else digits(row["milliseconds"])


def program_milliseconds(row):
    middle, low, high = (digits(row["program milliseconds"][key]) for key in ("median", "min", "max"))
    return f"{middle} ({low} to {high})"


# The metrics of a profile that say what bounds a kernel; a report has all of them in its JSON file.
SHOWN = re.compile(r"Duration|SM Frequency|Issue Slots Busy|L1/TEX|Tensor|Achieved Occupancy|Shared.*Conflict")


def profile_table(launches):
    """Launches as `gpu_check.ncu` returns them: one line per launch and metric."""
    rows = [
        [str(number), f"`{launch['kernel']}`", metric, f"{value} {unit}".strip()]
        for number, launch in enumerate(launches, 1)
        for metric, (value, unit) in launch["metrics"].items()
        if SHOWN.search(metric)
    ]
    return markdown([["launch", "kernel", "metric", "value"], *rows])
