"""The loop of an aggregation that remains once corners and weights are known: a lower bound on a CPU's forward pass.

It is a C++ program for float32 and heads of 32 channels, compiled for the processor that runs it.
"""

import ctypes

import jax
import numpy as np

from benchmarks.baselines import Unavailable, native, native_call
from benchmarks.baselines.pure_jax import corners, window_positions
from benchmarks.support.machine import cores

NAME = "bare loop"
ABOUT = (
    "Time: the time of jax_dcn as a multiple of that of a C++ loop that only gathers and multiplies: it is given the "
    "corners of all samples and their weights. "
)
CHANNELS = 32


def prepare_attention(problem, backward):
    value, locations, weights = (np.asarray(array) for array in problem.operands.values())
    shapes = problem.options["spatial_shapes"]
    firsts = np.cumsum([0, *(height * width for height, width in shapes)])
    corners = [
        corners_of(locations[..., i, :, 1] * height - 0.5, locations[..., i, :, 0] * width - 0.5, height, width)
        for i, (height, width) in enumerate(shapes)
    ]
    pixel = np.concatenate([first + pixels for first, (pixels, _) in zip(firsts, corners, strict=False)], -2)
    weight = np.concatenate([weight for _, weight in corners], -2)
    return prepare(problem, backward, value, pixel, weight * weights.reshape(*weights.shape[:-2], -1, 1))


def prepare_dcnv3(problem, backward):
    x, offset, mask = (np.asarray(array) for array in problem.operands.values())
    batch, height, width, _ = x.shape
    groups = problem.options["groups"]
    y, x_ = (np.asarray(array) for array in window_positions(offset.reshape(batch, height, width, groups, 9, 2)))
    pixel, weight = corners_of(y, x_, height, width)
    value = x.reshape(batch, height * width, groups, -1)
    return prepare(problem, backward, value, pixel, weight * mask.reshape(*weight.shape[:-1], 1))


def corners_of(y, x, height, width):
    """The pixels and the weights [..., 4] of the corners of samples; weight 0 where there is no pixel."""
    pixels, weights = zip(*corners(y, x, height, width), strict=True)
    return np.stack(pixels, -1), np.stack(weights, -1)


def prepare(problem, backward, value, pixel, weight):
    """`value`: [batch, pixels, heads, channels]; `pixel`, `weight`: [batch, ..., heads, taps, 4]."""
    batch, pixels, heads, channels = value.shape
    if jax.default_backend() != "cpu":
        raise Unavailable("runs on a CPU")
    if backward:
        raise Unavailable("has no backward pass")
    if problem.dtype != "float32" or channels != CHANNELS:
        raise Unavailable(f"is for float32 and {CHANNELS} channels per head")
    sum_rows = library().SumRows
    image = np.arange(batch).reshape(-1, *[1] * (pixel.ndim - 1))
    index = ((image * pixels + pixel) * heads + np.arange(heads)[:, None, None]) * channels
    value, index, weight = (np.ascontiguousarray(a, t) for a, t in ((value, "f4"), (index, "i4"), (weight, "f4")))
    out = np.empty(problem.cotangent.shape, np.float32)
    rows = out.size // channels

    def start():
        sizes = rows, index.size // rows
        sum_rows(value.ctypes.data, *sizes, *(array.ctypes.data for array in (index, weight, out)), cores())
        return out

    return native_call(start)


def library():
    loaded = native.library("bare_loop")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    loaded.SumRows.argtypes = [pointer, number, number, pointer, pointer, pointer, number]
    loaded.SumRows.restype = None
    return loaded
