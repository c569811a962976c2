"""How time and memory of the operators grow with the work, and the slopes on a log-log plot."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measurements import deform_conv, deform_psroi_pool
from benchmarks.measurements.measure import measure


class Axis(NamedTuple):
    operator: Any
    contenders: tuple[str, ...]
    values: tuple[int, ...]
    shape: Any  # of a value
    label: str


CONVOLUTION, POOLING = ("jax_dcn", deform_conv.FLOOR), ("jax_dcn", "reference")
AXES = {
    "batch": Axis(
        *(deform_conv, CONVOLUTION, (1, 2, 4, 8, 16, 32, 64)),
        lambda n: deform_conv.Shape(n, 32, 32, 128, 128),
        "batch of images 32 x 32 x 128",
    ),
    "channels": Axis(
        *(deform_conv, CONVOLUTION, (64, 128, 256, 512, 1024)),
        lambda n: deform_conv.Shape(2, 32, 32, n, n),
        "channels of 2 x 32 x 32 pixels, in and out",
    ),
    "side": Axis(
        *(deform_conv, CONVOLUTION, (32, 64, 128, 256, 512, 1024)),
        lambda n: deform_conv.Shape(1, n, n, 64, 64),
        "side of a square image of 64 channels",
    ),
    "offset": Axis(
        *(deform_conv, CONVOLUTION, (1, 4, 16, 64, 256)),
        lambda n: deform_conv.Shape(2, 128, 128, 128, 128, deviation=n),
        "pixels by which offsets deviate, of images 128 x 128",
    ),
    "points": Axis(
        *(deform_psroi_pool, POOLING, (1, 2, 4, 8)),
        lambda n: deform_psroi_pool.Shape(1, 38, 63, 64, rois=64, points=n),
        "points of a bin, along each axis",
    ),
}


def tasks(args):
    dtype = args.dtypes[0]
    for name, axis in AXES.items():
        for value in axis.values:
            yield f"{name} {value} {dtype}", partial(rows_of, name, value, dtype, args.repeats)


def rows_of(name, value, dtype, repeats):
    axis = AXES[name]
    contenders = {contender: axis.operator.CONTENDERS[contender] for contender in axis.contenders}
    row = {"axis": name, "value": value, "shape": f"{name} {value}", "dtype": dtype}
    return [
        row | measured for measured in measure(axis.operator.problem(axis.shape(value), dtype), contenders, repeats)
    ]


def series(rows, name, pass_):
    """Of the rows of an axis and a pass, in the order of the axis."""
    return sorted((r for r in rows if r["axis"] == name and r["pass"] == pass_), key=lambda row: row["value"])


def slope(values, costs):
    """Of the straight line that lies nearest to the logarithms: 1 where the cost grows as the value does."""
    return float(np.polyfit(np.log(values), np.log(costs), 1)[0])


def slopes(points):
    """Over all the points, and over the larger half, where a call's fixed cost matters less."""
    points = [(value, cost) for value, cost in points if cost]
    half = points[len(points) // 2 :]
    return tuple(slope(*zip(*part, strict=True)) if len(part) > 1 else None for part in (points, half))
