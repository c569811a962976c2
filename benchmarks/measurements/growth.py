"""How the time and memory of the operators scale with the problem size, and the slopes on a log-log plot."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.baselines import Operator
from benchmarks.measurements import deform_conv, roi_pool
from benchmarks.measurements.deform_conv import CONVOLUTION, XLA
from benchmarks.measurements.measure import measure


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
