"""Deformable convolution: shapes, operands and implementations."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.baselines import Operator, Problem, compiled, pytorch

VARIED = ("x", "offset", "weight", "mask")
OFFSET_DEVIATION = 2  # pixels


class Shape(NamedTuple):
    """A modulated 3x3 convolution of x [batch, height, width, channels] to `features` channels."""

    batch: int
    height: int
    width: int
    channels: int
    features: int
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    offset_groups: int = 1

    def __str__(self):
        parts = [f"{self.batch} x {self.height} x {self.width} x {self.channels} to {self.features}"]
        for name in ("stride", "dilation", "groups", "offset_groups"):
            if getattr(self, name) != 1:
                parts.append(f"{name.replace('_', ' ')} {getattr(self, name)}")
        return ", ".join(parts)


# Layers of published detectors and video models.
SHAPES = {
    "A": Shape(2, 100, 168, 128, 128),  # ResNet-50 stage c3, images of 800 x 1333
    "B": Shape(2, 50, 84, 256, 256),  # c4
    "C": Shape(2, 25, 42, 512, 512),  # c5
    "D": Shape(1, 38, 63, 512, 512, dilation=2, offset_groups=4),  # R-FCN res5
    "A2": Shape(2, 200, 336, 128, 128, stride=2),  # first block of c3
    "E": Shape(32, 32, 32, 256, 128),  # CenterNet
    "E2": Shape(32, 64, 64, 128, 64),
    "F": Shape(32, 64, 64, 64, 64, offset_groups=8),  # EDVR
    "G": Shape(8, 64, 64, 128, 64, offset_groups=16),  # BasicVSR++
    "H": Shape(2, 100, 168, 256, 256, groups=32),  # ResNeXt-101 c3
    "K": Shape(1, 64, 64, 8, 64),  # few channels
}
# Many offset groups, with as few as one image to divide among threads.
SHAPES |= {"I": Shape(1, 128, 128, 64, 64, offset_groups=8), "J": Shape(1, 64, 64, 128, 128, offset_groups=16)}
SHAPES |= {f"{name}2": SHAPES[name]._replace(batch=2) for name in "IJ"}
SHAPES |= {f"{name}16": SHAPES[name]._replace(batch=16) for name in "ABCDIJ"}


def problem(shape, dtype):
    random, samples = np.random.default_rng(0), 9 * shape.offset_groups
    place = shape.batch, -(-shape.height // shape.stride), -(-shape.width // shape.stride)

    def normal(*size, scale=1.0):
        return jnp.asarray(random.standard_normal(size, np.float32) * np.float32(scale), dtype)

    # Samples lie a quarter of a pixel away from the non-differentiable points, and their locations are exact in 16
    # bits, so that all implementations read the same pixels.
    offset = random.standard_normal((*place, 2 * samples), np.float32) * OFFSET_DEVIATION
    offset = np.round(2 * offset) / 2 + 0.25
    return Problem(
        operands={
            "x": normal(shape.batch, shape.height, shape.width, shape.channels),
            "offset": jnp.asarray(offset, jnp.float32),
            "weight": normal(3, 3, shape.channels // shape.groups, shape.features, scale=0.02),
            "mask": jnp.asarray(random.random((*place, samples), np.float32)),
        },
        varied=VARIED,
        cotangent=normal(*place, shape.features),
        dtype=dtype,
        options={"stride": shape.stride, "dilation": shape.dilation, "groups": shape.groups},
    )


def deformable(x, offset, weight, mask, *, stride, dilation, groups, backend=None):
    return jax_dcn.deform_conv2d(
        x,
        offset,
        weight,
        mask=mask,
        strides=stride,
        padding=dilation,
        kernel_dilation=dilation,
        feature_group_count=groups,
        backend=backend,
    )


def ordinary(x, weight, *, stride, dilation, groups, padding=None):
    """XLA's convolution, by default with the padding of 3 x 3 taps."""
    padding = dilation if padding is None else padding
    return jax.lax.conv_general_dilated(
        x,
        weight,
        window_strides=(stride,) * 2,
        padding=[(padding,) * 2] * 2,
        rhs_dilation=(dilation,) * 2,
        feature_group_count=groups,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def undeformed(problem):
    """The problem with zero offsets and masks of ones, where an ordinary convolution is the same function."""
    plain = {"offset": jnp.zeros_like, "mask": jnp.ones_like}
    operands = {name: plain[name](array) if name in plain else array for name, array in problem.operands.items()}
    return problem._replace(operands=operands)


XLA, ONEDNN = "XLA convolution", "oneDNN convolution"
CONVOLUTION = Operator(
    name="deform_conv2d",
    function=deformable,
    shapes=SHAPES,
    problem=problem,
    implementations={
        "jax_dcn": compiled.implementation(deformable, VARIED),
        "im2col path": compiled.implementation(partial(deformable, backend="im2col"), VARIED),
        XLA: compiled.implementation(ordinary, ("x", "weight"), agrees_at=undeformed),
        ONEDNN: pytorch.implementation(
            *(pytorch.ordinary_convolution, pytorch.onednn_type, ("x", "weight")),
            layout="channels last",
            agrees_at=undeformed,
        ),
        "torchvision": pytorch.implementation(pytorch.deform_conv2d, pytorch.torchvision_type),
        "reference": compiled.implementation(partial(deformable, backend="reference"), VARIED),
    },
    lower_bounds=(XLA, ONEDNN),
)
