"""The table of lower bounds on the time of a deformable convolution."""

from benchmarks.contenders import PASSES
from benchmarks.measurements.deform_conv import SHAPES
from benchmarks.measurements.floors import BYTES, NAMES, OPERATIONS, count
from benchmarks.reports.formatting import markdown


def table():
    rows = [
        ["shape", "pass", "GFLOP", "MB", "columns, MB", "products, ms", "memory, ms", "memory with columns, ms"],
    ]
    for name in NAMES:
        for title, (operations, moved, columns) in zip(PASSES, count(SHAPES[name]), strict=True):
            times = (operations / OPERATIONS, moved / BYTES, (moved + columns) / BYTES)
            rows.append(
                [
                    *(name, title, f"{operations / 1e9:.0f}", f"{moved / 1e6:.0f}", f"{columns / 1e6:.0f}"),
                    *(f"{1e3 * time:.3f}" for time in times),
                ]
            )
    return markdown(rows)
