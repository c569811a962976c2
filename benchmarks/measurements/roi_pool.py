"""Deformable PS-RoI pooling and RoIAlign: shapes, operands and implementations."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.baselines import Operator, Problem, compiled, pytorch

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
        return ", ".join([*parts, f"{self.points}² points per bin"])


def problem(shape, dtype, is_deformable):
    random = np.random.default_rng(0)

    def normal(*size, dtype=dtype):
        return jnp.asarray(random.standard_normal(size, np.float32), dtype)

    x = normal(shape.images, shape.height, shape.width, shape.features * shape.group**2)
    operands = {"x": x, "rois": make_rois(shape, random)}
    options = {"output_size": BINS, "spatial_scale": 1 / shape.stride}
    if is_deformable:
        operands["offset"] = normal(shape.rois, BINS, BINS, 2 * shape.classes, dtype=jnp.float32)
        options |= {"group_size": shape.group, "sample_per_part": shape.points}
    else:
        options |= {"sampling_ratio": shape.points}
    return Problem(
        operands=operands,
        varied=tuple(name for name in operands if name != "rois"),
        cotangent=normal(shape.rois, BINS, BINS, shape.features),
        dtype=dtype,
        options=options,
    )


def make_rois(shape, random):
    """Regions as a detector proposes them: image after image, sizes log-uniform from 32 to 600 pixels."""
    picture = np.array([shape.width, shape.height]) * shape.stride
    size = np.minimum(np.exp(random.uniform(np.log(32), np.log(600), (shape.rois, 2))), picture)
    corner = random.uniform(0, picture - size)
    image = np.arange(shape.rois)[:, None] * shape.images // shape.rois
    return jnp.asarray(np.concatenate([image, corner, corner + size - 1], 1), jnp.float32)


PSROI_POOL = Operator(
    name="deform_psroi_pool",
    function=jax_dcn.deform_psroi_pool,
    shapes={
        "P1": Shape(2, 38, 63, 81, rois=300, group=7, classes=81),  # R-FCN, scores
        "P2": Shape(2, 38, 63, 8, rois=300, group=7),  # R-FCN, boxes
        "P3": Shape(2, 38, 63, 256, rois=512),  # Faster R-CNN
        "P4": Shape(2, 200, 336, 256, rois=1000, stride=4),  # feature pyramid
    },
    problem=partial(problem, is_deformable=True),
    implementations=compiled.in_jax(jax_dcn.deform_psroi_pool, ("x", "rois", "offset")),
)
ROI_ALIGN = Operator(
    name="roi_align",
    function=jax_dcn.roi_align,
    shapes={
        "R1": Shape(1, 50, 68, 256, rois=512, points=2),  # one level
        "R2": Shape(1, 200, 336, 256, rois=512, stride=4, points=2),  # feature pyramid
        "R3": Shape(2, 200, 336, 256, rois=512, stride=4, points=2),
    },
    problem=partial(problem, is_deformable=False),
    implementations=compiled.in_jax(jax_dcn.roi_align, ("x", "rois"))
    | {"torchvision": pytorch.implementation(pytorch.roi_align, pytorch.torchvision_type)},
)
