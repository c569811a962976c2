"""Deformable convolution: shapes, operands and contenders."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.contenders import (
    Contender,
    Problem,
    bare_convolution,
    compiled,
    onednn,
    onnxruntime,
    products,
    pure_jax,
    torchvision,
)

NAME = "deform_conv2d"
FLOOR, PRODUCTS, ONEDNN = ("XLA convolution", "matrix products", "oneDNN convolution")
FLOORS = (FLOOR, PRODUCTS, ONEDNN, bare_convolution.NAME)
ABOUT_FLOORS = (
    "Time: the time of jax_dcn divided by that of XLA's ordinary convolution (which samples nothing), of the matrix "
    "products alone (columns already in memory), and of oneDNN's ordinary convolution. " + bare_convolution.ABOUT
)
VARIED = ("x", "offset", "weight", "mask")


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
    deviation: float = 2  # standard deviation of the offsets, in pixels

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
}
SHAPES |= {f"{name}16": SHAPES[name]._replace(batch=16) for name in "ABCD"}


def problem(shape, dtype):
    random = np.random.default_rng(0)
    size = (shape.batch, -(-shape.height // shape.stride), -(-shape.width // shape.stride))
    samples = 9 * shape.offset_groups

    def normal(*size, scale=1.0):
        return jnp.asarray(random.standard_normal(size, np.float32) * np.float32(scale), dtype)

    # Samples lie a quarter of a pixel away from the kinks of the interpolation, and their locations are exact in 16
    # bits, so that all contenders read the same pixels.
    offset = random.standard_normal((*size, 2 * samples), np.float32) * shape.deviation
    offset = np.round(2 * offset) / 2 + 0.25
    return Problem(
        operands={
            "x": normal(shape.batch, shape.height, shape.width, shape.channels),
            "offset": jnp.asarray(offset, jnp.float32),
            "weight": normal(3, 3, shape.channels // shape.groups, shape.features, scale=0.02),
            "mask": jnp.asarray(random.random((*size, samples), np.float32)),
        },
        varied=VARIED,
        cotangent=normal(*size, shape.features),
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


def by_torchvision(ops, operands, options):
    dilation = options["dilation"]
    sampling = {"stride": options["stride"], "padding": dilation, "dilation": dilation}
    return ops.deform_conv2d(operands["x"], operands["offset"], operands["weight"], mask=operands["mask"], **sampling)


def reference(**arguments):
    return deformable(**arguments, backend="reference")


def ordinary(x, weight, *, stride, dilation, groups):
    return jax.lax.conv_general_dilated(
        x,
        weight,
        window_strides=(stride,) * 2,
        padding=[(dilation,) * 2] * 2,
        rhs_dilation=(dilation,) * 2,
        feature_group_count=groups,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def undeformed(problem):
    """The problem with zero offsets and a mask of ones, where an ordinary convolution is the same function."""
    offset, mask = problem.operands["offset"], problem.operands["mask"]
    zeros = {"offset": jnp.zeros_like(offset), "mask": jnp.ones_like(mask)}
    return problem._replace(operands={**problem.operands, **zeros})


CONTENDERS = {
    "jax_dcn": compiled.contender(deformable, VARIED),
    "plain path": compiled.contender(partial(deformable, backend="plain"), VARIED),
    FLOOR: compiled.contender(ordinary, ("x", "weight"), agrees_at=undeformed),
    PRODUCTS: Contender(products.prepare, agrees_at=undeformed),
    ONEDNN: Contender(onednn.prepare, agrees_at=undeformed, compiles=False),
    bare_convolution.NAME: Contender(bare_convolution.prepare),
    "pure JAX": compiled.contender(pure_jax.deform_conv2d, VARIED),
    "torchvision": Contender(partial(torchvision.prepare, by_torchvision), compiles=False),
    "onnxruntime": Contender(onnxruntime.prepare, compiles=False),
    "reference": compiled.contender(reference, VARIED),
}
