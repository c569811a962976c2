"""Deformable PS-RoI pooling: shapes, operands and contenders."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.contenders import Problem, compiled, pure_jax

NAME = "deform_psroi_pool"
FLOORS = ()
ABOUT_FLOORS = ""
OPERANDS = ("x", "rois", "offset")
BINS = 7


class Shape(NamedTuple):
    """Feature maps [images, height, width, features · group²] of stride `stride`, pooled to BINS x BINS."""

    images: int
    height: int
    width: int
    features: int
    rois: int
    stride: int = 16
    group: int = 1
    classes: int = 1
    points: int = 4  # per bin, along each axis

    def __str__(self):
        channels = self.features * self.group**2
        parts = [f"{self.rois} regions of {self.images} x {self.height} x {self.width} x {channels}"]
        if self.group > 1:
            parts.append(f"group size {self.group}")
        if self.classes > 1:
            parts.append(f"{self.classes} classes")
        return ", ".join(parts)


SHAPES = {
    "P1": Shape(2, 38, 63, 81, rois=300, group=7, classes=81),  # R-FCN, scores
    "P2": Shape(2, 38, 63, 8, rois=300, group=7),  # R-FCN, boxes
    "P3": Shape(2, 38, 63, 256, rois=512),  # Faster R-CNN
    "P4": Shape(2, 200, 336, 256, rois=1000, stride=4),  # feature pyramid
}


def problem(shape, dtype):
    random = np.random.default_rng(0)

    def normal(*size, dtype=dtype):
        return jnp.asarray(random.standard_normal(size, np.float32), dtype)

    return Problem(
        operands={
            "x": normal(shape.images, shape.height, shape.width, shape.features * shape.group**2),
            "rois": make_rois(shape, random),
            "offset": normal(shape.rois, BINS, BINS, 2 * shape.classes, dtype=jnp.float32),
        },
        varied=("x", "offset"),
        cotangent=normal(shape.rois, BINS, BINS, shape.features),
        dtype=dtype,
        options={
            "output_size": BINS,
            "spatial_scale": 1 / shape.stride,
            "group_size": shape.group,
            "sample_per_part": shape.points,
        },
    )


def make_rois(shape, random):
    """Regions as a detector proposes them: image after image, sizes log-uniform from 32 to 600 pixels."""
    picture = np.array([shape.width, shape.height]) * shape.stride
    size = np.minimum(np.exp(random.uniform(np.log(32), np.log(600), (shape.rois, 2))), picture)
    corner = random.uniform(0, picture - size)
    image = np.arange(shape.rois)[:, None] * shape.images // shape.rois
    return jnp.asarray(np.concatenate([image, corner, corner + size - 1], 1), jnp.float32)


CONTENDERS = {
    "jax_dcn": compiled.contender(jax_dcn.deform_psroi_pool, OPERANDS),
    "pure JAX": compiled.contender(pure_jax.deform_psroi_pool, OPERANDS),
    "reference": compiled.contender(partial(jax_dcn.deform_psroi_pool, backend="reference"), OPERANDS),
}
