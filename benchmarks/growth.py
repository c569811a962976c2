"""How the time and memory of the operators scale with the problem size, and the slopes on a log-log plot."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.baselines import PASSES, Operator
from benchmarks.measurements import deform_conv, roi_pool
from benchmarks.measurements.deform_conv import CONVOLUTION, XLA
from benchmarks.measurements.measure import measure
from benchmarks.reports.formatting import list_reasons, markdown, mebibytes, median, milliseconds


class Axis(NamedTuple):
    operator: Operator
    baseline: str
    values: tuple[int, ...]
    shape: Callable[[int], Any]
    label: str

    @property
    def implementations(self):
        return ("jax_dcn", self.baseline)


AXES = {
    "batch": Axis(
        *(CONVOLUTION, XLA, (1, 2, 4, 8, 16, 32, 64)),
        lambda n: deform_conv.Shape(n, 32, 32, 128, 128),
        "batch of images 32 x 32 x 128",
    ),
    "channels": Axis(
        *(CONVOLUTION, XLA, (64, 128, 256, 512, 1024)),
        lambda n: deform_conv.Shape(2, 32, 32, n, n),
        "input and output channels of 2 x 32 x 32 pixels",
    ),
    "side": Axis(
        *(CONVOLUTION, XLA, (32, 64, 128, 256, 512, 1024)),
        lambda n: deform_conv.Shape(1, n, n, 64, 64),
        "side of a square image of 64 channels",
    ),
    "offset": Axis(
        *(CONVOLUTION, XLA, (1, 4, 16, 64, 256)),
        lambda n: deform_conv.Shape(2, 128, 128, 128, 128, deviation=n),
        "standard deviation of offsets in pixels, images of 128 x 128",
    ),
    "points": Axis(
        *(roi_pool.PSROI_POOL, "reference", (1, 2, 4, 8)),
        lambda n: roi_pool.Shape(1, 38, 63, 64, rois=64, points=n),
        "points per bin, along each axis",
    ),
}


def tasks(args):
    dtype = args.dtypes[0]
    for name, axis in AXES.items():
        for value in axis.values:
            yield f"{name} {value} {dtype}", partial(rows_of, name, value, dtype, args.repeats)


def rows_of(name, value, dtype, repeats):
    axis = AXES[name]
    chosen = {one: axis.operator.implementations[one] for one in axis.implementations}
    row = {"axis": name, "value": value, "shape": f"{name} {value}", "dtype": dtype}
    problem = axis.operator.problem(axis.shape(value), dtype)
    return [row | measured for measured in measure(problem, chosen, repeats)]


def series(rows, name, pass_):
    """The rows of an axis and a pass, in the order of the values."""
    return sorted((r for r in rows if r["axis"] == name and r["pass"] == pass_), key=lambda row: row["value"])


def slope(values, costs):
    """The slope of the line fitted to the logarithms: 1 if the cost is proportional to the value."""
    return float(np.polyfit(np.log(values), np.log(costs), 1)[0])


def slopes(points):
    """Slopes over all points, and over the larger half, where the fixed cost of a call matters less."""
    points = [(value, cost) for value, cost in points if cost]
    half = points[len(points) // 2 :]
    return tuple(slope(*zip(*part, strict=True)) if len(part) > 1 else None for part in (points, half))


def tables(rows):
    yield (
        "## Growth\n\nSlopes of time and memory on a log-log plot: 1 if the cost grows in proportion. "
        f"In brackets: the slope over the larger half of the values.\n\n{slope_table(rows)}"
    )
    for name, axis in AXES.items():
        own = [row for pass_ in PASSES for row in series(rows, name, pass_)]
        if own:
            reasons = [*list_reasons(own, list(axis.implementations))]
            yield "\n\n".join([f"### {axis.label[0].upper()}{axis.label[1:]}", detail(own, axis), *reasons])


def slope_table(rows):
    table = [["growing", "pass", "implementation", "range", "time", "memory"]]
    for name, axis in AXES.items():
        for pass_ in PASSES:
            own = series(rows, name, pass_)
            for one in axis.implementations if own else ():
                values = [row["value"] for row in own]
                time = slopes((row["value"], median(row, one)) for row in own)
                memory = slopes((row["value"], row["bytes"].get(one)) for row in own)
                span = f"{values[0]} to {values[-1]}"
                table.append([name, pass_, one, span, shown(time), shown(memory)])
    return markdown(table)


def shown(slopes):
    everything, half = ("-" if s is None else f"{round(s, 2) + 0:.2f}" for s in slopes)
    return f"{everything} ({half})"


def detail(rows, axis):
    head = [rows[0]["axis"], "pass", *(f"{name}, {unit}" for unit in ("ms", "MiB") for name in axis.implementations)]
    body = (
        [
            str(row["value"]),
            row["pass"],
            *(cell(row, n) for cell in (milliseconds, mebibytes) for n in axis.implementations),
        ]
        for row in rows
    )
    return markdown([head, *body])
