"""The ordinary convolution, which `deform_conv2d` computes where no offset is passed."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.baselines import Operator, Problem, compiled, pytorch
from benchmarks.measurements.deform_conv import ONEDNN, XLA, ordinary

VARIED = ("x", "weight")


class Shape(NamedTuple):
    """A convolution of square images [batch, size, size, channels] to `features` channels, padded by half its kernel.

    kernel: the taps of a side; groups: as many as channels in a depthwise convolution.
    """

    batch: int
    size: int
    channels: int
    features: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1

    def __str__(self):
        parts = [
            f"{self.batch} x {self.size} x {self.size} x {self.channels} to {self.features}",
            f"{self.kernel} x {self.kernel} taps",
        ]
        parts += [f"{name} {getattr(self, name)}" for name in ("stride", "groups") if getattr(self, name) != 1]
        return ", ".join(parts)


# Layers of detectors of images of 640 x 640.
SHAPES = {
    "N1": Shape(1, 80, 256, 256),  # the towers of a head
    "N2": Shape(1, 40, 2176, 512, kernel=1),  # HGNetv2's aggregation
    "N3": Shape(1, 40, 192, 192, kernel=5, groups=192),  # its depthwise layers
    "N4": Shape(1, 80, 256, 256, stride=2, groups=256),
    "N5": Shape(1, 160, 64, 64),  # ResNet's stage c2
    "N6": Shape(1, 320, 32, 64),  # its deep stem
    "N7": Shape(1, 80, 128, 256, stride=2),
    "N8": Shape(1, 20, 256, 256),
    "N9": Shape(1, 640, 3, 64, kernel=7, stride=2),  # its stem
    "N10": Shape(1, 160, 64, 256, kernel=1),  # the last layer of a bottleneck in c2
}


def problem(shape, dtype):
    random, size = np.random.default_rng(0), -(-shape.size // shape.stride)

    def normal(*size, scale=1.0):
        return jnp.asarray(random.standard_normal(size, np.float32) * np.float32(scale), dtype)

    return Problem(
        operands={
            "x": normal(shape.batch, shape.size, shape.size, shape.channels),
            "weight": normal(shape.kernel, shape.kernel, shape.channels // shape.groups, shape.features, scale=0.02),
        },
        varied=VARIED,
        cotangent=normal(shape.batch, size, size, shape.features),
        dtype=dtype,
        options={"stride": shape.stride, "dilation": 1, "groups": shape.groups, "padding": shape.kernel // 2},
    )


def on_grid(x, weight, *, stride, dilation, groups, padding, backend=None):
    options = {"strides": stride, "padding": padding, "kernel_dilation": dilation, "feature_group_count": groups}
    return jax_dcn.deform_conv2d(x, None, weight, **options, backend=backend)


ORDINARY_CONVOLUTION = Operator(
    name="ordinary convolution",
    function=on_grid,
    shapes=SHAPES,
    problem=problem,
    implementations={
        "jax_dcn": compiled.implementation(on_grid, VARIED),
        XLA: compiled.implementation(ordinary, VARIED),
        ONEDNN: pytorch.implementation(
            pytorch.ordinary_convolution, pytorch.onednn_type, VARIED, layout="channels last"
        ),
    },
)
