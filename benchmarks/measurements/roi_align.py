"""RoIAlign: shapes, operands and contenders."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.contenders import Contender, Problem, compiled, pure_jax, torchvision
from benchmarks.measurements.deform_psroi_pool import BINS, make_rois

NAME = "roi_align"
FLOORS = ()
ABOUT_FLOORS = ""
OPERANDS = ("x", "rois")


class Shape(NamedTuple):
    """Feature maps [images, height, width, features] of stride `stride`, pooled to BINS x BINS."""

    images: int
    height: int
    width: int
    features: int
    rois: int
    stride: int = 16
    points: int = 2  # per bin, along each axis

    def __str__(self):
        return (
            f"{self.rois} regions of {self.images} x {self.height} x {self.width} x {self.features}, "
            f"{self.points}² points per bin"
        )


SHAPES = {
    "R1": Shape(1, 50, 68, 256, rois=512),  # one level
    "R2": Shape(1, 200, 336, 256, rois=512, stride=4),  # feature pyramid
    "R3": Shape(2, 200, 336, 256, rois=512, stride=4),
}


def problem(shape, dtype):
    random = np.random.default_rng(0)

    def normal(*size):
        return jnp.asarray(random.standard_normal(size, np.float32), dtype)

    return Problem(
        operands={
            "x": normal(shape.images, shape.height, shape.width, shape.features),
            "rois": make_rois(shape, random),
        },
        varied=("x",),
        cotangent=normal(shape.rois, BINS, BINS, shape.features),
        dtype=dtype,
        options={"output_size": BINS, "spatial_scale": 1 / shape.stride, "sampling_ratio": shape.points},
    )


def by_torchvision(ops, operands, options):
    return ops.roi_align(*operands.values(), **options, aligned=True)


CONTENDERS = {
    "jax_dcn": compiled.contender(jax_dcn.roi_align, OPERANDS),
    "pure JAX": compiled.contender(pure_jax.roi_align, OPERANDS),
    "torchvision": Contender(partial(torchvision.prepare, by_torchvision), compiles=False),
    "reference": compiled.contender(partial(jax_dcn.roi_align, backend="reference"), OPERANDS),
}
