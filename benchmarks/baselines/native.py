"""Bare loops in C++, compiled for the processor that runs them: lower bounds in float32 on a CPU.

That of a convolution has only its steps: it locates, interpolates and multiplies, for offset groups of 8 channels on
CPUs with AVX2 or AVX-512. Those of aggregations and poolings are given the corners of all samples and their weights;
they have no backward pass.
"""

import ctypes
import hashlib
from functools import cache, partial
from pathlib import Path

import jax
import numpy as np

from benchmarks.baselines import Call, Implementation, Unavailable, compiled
from benchmarks.baselines.pure_jax import corners, grid_corners, psroi_corners, roi_corners, window_positions
from benchmarks.support import cached_build
from benchmarks.support.machine import cores, processor
from jax_dcn._operators.deform_conv.plan import INSTRUCTIONS

NAME = "bare loop"
ABOUT_CONVOLUTION = (
    "Bare loop: a C++ program that only locates, interpolates and multiplies, with one border rule and no options. For "
    "the gradients it also adds to pixels, and each image belongs to one thread. Its weight is packed beforehand, and "
    "it writes to the same arrays in every call. "
)
ABOUT_AGGREGATION = (
    "Time: the time of jax_dcn as a multiple of that of a C++ loop that only gathers and multiplies: it is given the "
    "corners of all samples and their weights. "
)
GROUP_CHANNELS = 8  # as in bare_convolution.cc, like the panels of features
CHANNELS = 1, 3, 32, 64  # of a row, as in bare_loop.cc
ROW_CHANNELS = 64


def beside_loop(function, operands, prepare_loop, in_pure_jax):
    """An operator, its bare loop and its forms in `jax.numpy`, with the operands of these names."""
    return {
        "jax_dcn": compiled.implementation(function, operands),
        NAME: Implementation(partial(prepare_forward, prepare_loop)),
        "pure JAX": compiled.implementation(in_pure_jax, operands),
        "reference": compiled.implementation(partial(function, backend="reference"), operands),
    }


class Convolution(ctypes.Structure):
    """The struct of bare_convolution.cc."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("images", "height", "width", "channels", "features")),
        *((name, ctypes.c_void_p) for name in ("x", "offset", "mask", "weight", "y")),
        *((name, ctypes.c_void_p) for name in ("transposed", "d_y", "d_x", "d_offset", "d_mask", "d_weight")),
    ]


def prepare_convolution(problem, backward):
    check(problem)
    x, offset, weight, mask = (
        np.ascontiguousarray(problem.operands[name], np.float32) for name in ("x", "offset", "weight", "mask")
    )
    channels, features = weight.shape[-2:]
    if not INSTRUCTIONS.startswith(("avx", "amx")):
        raise Unavailable("has register tiles of AVX2 and AVX-512")
    loaded = library("bare_convolution")
    panel = ctypes.c_int64.in_dll(loaded, "panel_features").value
    if mask.shape[-1] * GROUP_CHANNELS != 9 * channels or features % panel:
        raise Unavailable(f"needs offset groups of {GROUP_CHANNELS} channels and a multiple of {panel} features")
    if any(problem.options[name] != 1 for name in ("stride", "dilation", "groups")):
        raise Unavailable("has no stride, dilation or feature groups")
    if backward and len(x) < cores():
        raise Unavailable("has at most one thread for each image in the backward pass")
    matrix = weight.reshape(9, -1, GROUP_CHANNELS, features).swapaxes(0, 1).reshape(-1, features)
    panels = np.ascontiguousarray(matrix.reshape(-1, features // panel, panel).swapaxes(0, 1))
    arrays = {"x": x, "offset": offset, "mask": mask, "weight": panels}
    results = {"y": np.empty(problem.cotangent.shape, np.float32)}
    functions = [loaded.Convolve]
    if backward:
        padded = np.pad(matrix, ((0, -len(matrix) % panel), (0, 0)))
        arrays["transposed"] = np.ascontiguousarray(padded.reshape(-1, panel, features).swapaxes(1, 2))
        arrays["d_y"] = np.ascontiguousarray(problem.cotangent, np.float32)
        for name, operand in {"x": x, "offset": offset, "mask": mask, "weight": matrix}.items():
            results[name] = arrays[f"d_{name}"] = np.empty_like(operand)
        functions.append(loaded.Differentiate)
    arrays["y"] = results["y"]
    sizes = dict(zip(("images", "height", "width", "channels"), x.shape, strict=True))
    call = Convolution(**sizes, features=features, **{name: array.ctypes.data for name, array in arrays.items()})

    def start():
        assert arrays  # `call` has their addresses
        for function in functions:
            function(ctypes.byref(call), ctypes.c_int64(cores()))
        return results

    def found(results):
        copies = {name: array.copy() for name, array in results.items()}
        if backward:
            by_group = copies["weight"].reshape(-1, 9, GROUP_CHANNELS, features)
            copies["weight"] = by_group.swapaxes(0, 1).reshape(weight.shape)
        return copies

    return native_call(start, found)


def prepare_attention(problem):
    value, locations, weights = (np.asarray(array) for array in problem.operands.values())
    shapes = problem.options["spatial_shapes"]
    firsts = np.cumsum([0, *(height * width for height, width in shapes)])
    found = [
        stacked(corners(locations[..., i, :, 1] * height - 0.5, locations[..., i, :, 0] * width - 0.5, height, width))
        for i, (height, width) in enumerate(shapes)
    ]
    pixel = np.concatenate([first + pixels for first, (pixels, _) in zip(firsts, found, strict=False)], -2)
    weight = np.concatenate([weight for _, weight in found], -2)
    return prepare_sums(problem, value, pixel, weight * weights.reshape(*weights.shape[:-2], -1, 1))


def prepare_dcnv3(problem):
    x, offset, mask = (np.asarray(array) for array in problem.operands.values())
    batch, height, width, _ = x.shape
    groups = problem.options["groups"]
    y, x_ = (np.asarray(array) for array in window_positions(offset.reshape(batch, height, width, groups, 9, 2)))
    pixel, weight = stacked(corners(y, x_, height, width))
    value = x.reshape(batch, height * width, groups, -1)
    return prepare_sums(problem, value, pixel, weight * mask.reshape(*weight.shape[:-1], 1))


def prepare_sampling(problem):
    x, grid = problem.operands.values()
    pixel, weight = (array[None, :, :, None, None] for array in stacked(grid_corners(x.shape, grid)))
    return prepare_sums(problem, np.asarray(x).reshape(1, -1, 1, x.shape[-1]), pixel, weight)


def prepare_roi_align(problem):
    x, rois = problem.operands.values()
    return prepare_bins(problem, roi_corners(x.shape, rois, **problem.options))


def prepare_psroi_pool(problem):
    x, rois, offset = problem.operands.values()
    if problem.options["group_size"] > 1 or offset.shape[-1] > 2:
        raise Unavailable("is for one group and one class")
    return prepare_bins(problem, psroi_corners(x.shape, rois, offset, **problem.options))


def prepare_bins(problem, found):
    """`found`: the pixels and the weights of the corners of all points of a bin. A row has ROW_CHANNELS channels."""
    x = np.asarray(problem.operands["x"])
    if x.shape[-1] % ROW_CHANNELS:
        raise Unavailable(f"is for multiples of {ROW_CHANNELS} channels")
    heads = x.shape[-1] // ROW_CHANNELS
    pixel, weight = stacked(found)
    rois, *size = problem.cotangent.shape[:3]
    pixel, weight = (np.repeat(a.reshape(1, rois, *size, 1, -1, 4), heads, axis=4) for a in (pixel, weight))
    return prepare_sums(problem, x.reshape(1, -1, heads, ROW_CHANNELS), pixel, weight)


def stacked(found):
    """The pixels and the weights of corners, yielded one corner after the other, as arrays [..., corners]."""
    return [np.stack(arrays, -1) for arrays in zip(*found, strict=True)]


def prepare_sums(problem, value, pixel, weight):
    """`value`: [batch, pixels, heads, channels]; `pixel`, `weight`: [batch, ..., heads, taps, 4]."""
    batch, pixels, heads, channels = value.shape
    if channels not in CHANNELS:
        raise Unavailable(f"is for {', '.join(map(str, CHANNELS))} channels per head")
    sum_rows = library("bare_loop").SumRows
    image = np.arange(batch).reshape(-1, *[1] * (pixel.ndim - 1))
    index = ((image * pixels + pixel) * heads + np.arange(heads)[:, None, None]) * channels
    value, index, weight = (np.ascontiguousarray(a, t) for a, t in ((value, "f4"), (index, "i4"), (weight, "f4")))
    out = np.empty(problem.cotangent.shape, np.float32)
    rows = out.size // channels
    pointers, numbers = (ctypes.c_void_p, ctypes.c_int64)
    sum_rows.argtypes = [pointers, *[numbers] * 3, *[pointers] * 3, numbers]

    def start():
        sizes = channels, rows, index.size // rows
        sum_rows(value.ctypes.data, *sizes, *(array.ctypes.data for array in (index, weight, out)), cores())
        return out

    return native_call(start)


def check(problem):
    if jax.default_backend() != "cpu":
        raise Unavailable("runs on a CPU")
    if problem.dtype != "float32":
        raise Unavailable("needs float32")


def prepare_forward(prepare, problem, backward):
    """What `prepare` returns for a loop that has no backward pass."""
    if backward:
        raise Unavailable("has no backward pass")
    check(problem)
    return prepare(problem)


def native_call(start, found=lambda y: {"y": y.copy()}):
    """`start` runs the program, and returns its result, which the next call overwrites."""
    return Call(start, wait=lambda _: None, arrays=found, held=lambda call: (call(), None))


@cache
def library(name):
    """The library compiled from <name>.cc of this folder."""
    source = Path(__file__).with_name(f"{name}.cc")
    flags = ["-std=c++17", "-O3", "-march=native", "-mprefer-vector-width=512", "-fno-trapping-math"]
    if INSTRUCTIONS == "avx2":
        flags.append("-mno-avx512f")
    words = ["g++", *flags, "-shared", "-fPIC", "-pthread"]
    try:
        # -march=native depends on the processor.
        built = f"{name}_{hashlib.sha256(processor().encode()).hexdigest()[:8]}.so"
        return ctypes.CDLL(str(cached_build.build(built, [*words, str(source)], [source])))
    except (OSError, RuntimeError) as error:
        raise Unavailable("needs g++") from error
