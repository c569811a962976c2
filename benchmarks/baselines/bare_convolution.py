"""The three steps of a deformable convolution that is fused with its product, for comparison on CPUs with AVX-512.

It is a C++ program for float32 and offset groups of 8 channels, compiled for the processor that runs it.
"""

import ctypes

import jax
import numpy as np

from benchmarks.baselines import Unavailable, native, native_call
from benchmarks.support.machine import cores
from jax_dcn._operators.deform_conv.plan import INSTRUCTIONS

NAME = "bare loop"
ABOUT = (
    "Bare loop: a C++ program that only locates, interpolates and multiplies, with one border rule and no options. Its "
    "weight is packed beforehand, and it writes to the same array in every call. "
)
GROUP_CHANNELS, PANEL = 8, 32  # as in bare_convolution.cc


class Convolution(ctypes.Structure):
    """The struct of bare_convolution.cc."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("images", "height", "width", "channels", "features")),
        *((name, ctypes.c_void_p) for name in ("x", "offset", "mask", "weight", "y")),
    ]


def prepare(problem, backward):
    x, offset, weight, mask = (
        np.ascontiguousarray(problem.operands[name], np.float32) for name in ("x", "offset", "weight", "mask")
    )
    channels, features = weight.shape[-2:]
    if jax.default_backend() != "cpu":
        raise Unavailable("runs on a CPU")
    if not INSTRUCTIONS.startswith(("avx512", "amx")):
        raise Unavailable("has register tiles of AVX-512")
    if backward:
        raise Unavailable("has no backward pass")
    if problem.dtype != "float32" or mask.shape[-1] * GROUP_CHANNELS != 9 * channels or features % PANEL:
        raise Unavailable(f"needs float32, offset groups of {GROUP_CHANNELS} channels, a multiple of {PANEL} features")
    if any(problem.options[name] != 1 for name in ("stride", "dilation", "groups")):
        raise Unavailable("has no stride, dilation or feature groups")
    convolve = native.library("bare_convolution").Convolve
    by_group = weight.reshape(9, -1, GROUP_CHANNELS, features).swapaxes(0, 1)
    panels = np.ascontiguousarray(by_group.reshape(-1, features // PANEL, PANEL).swapaxes(0, 1))
    y = np.empty(problem.cotangent.shape, np.float32)
    arrays = (x, offset, mask, panels, y)
    call = Convolution(*x.shape, features, *(array.ctypes.data for array in arrays))

    def start():
        convolve(ctypes.byref(call), ctypes.c_int64(cores()))
        return arrays[-1]

    return native_call(start)
