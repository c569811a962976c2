"""Sampling of images at any positions: warps, points and volumes; and of scalar fields, linearly and by splines."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.ndimage

import jax_dcn
from benchmarks.baselines import Call, Implementation, Operator, Problem, Unavailable, compiled, pytorch
from benchmarks.support import memory

OPERANDS = ("x", "grid")
FIELD = ("input", "coordinates")


class Shape(NamedTuple):
    """Images [batch, *size, channels], sampled at `points`: near their own pixels if `warps`, else anywhere."""

    what: str
    batch: int
    size: tuple[int, ...]
    channels: int
    points: tuple[int, ...]
    warps: bool = False

    def __str__(self):
        size, points = (" x ".join(map(str, sizes)) for sizes in (self.size, self.points))
        return f"{self.what}: {self.batch} x {size} x {self.channels}, {points} points each"


def problem(shape, dtype):
    random = np.random.default_rng(0)
    dims = len(shape.size)
    if shape.warps:  # by a few pixels, as a smooth flow does
        size = np.array(shape.size)
        pixel = np.stack(np.meshgrid(*map(np.arange, shape.size), indexing="ij"), -1)
        flow = 4.7 * np.sin(pixel / 20 + random.uniform(0, 6, (shape.batch, *[1] * dims, dims)))
        grid = ((2 * (pixel + flow) + 1) / size - 1)[..., ::-1]
    else:
        grid = random.uniform(-1, 1, (shape.batch, *shape.points, dims))

    def normal(*size):
        return jnp.asarray(random.standard_normal(size, np.float32), dtype)

    return Problem(
        operands={"x": normal(shape.batch, *shape.size, shape.channels), "grid": jnp.asarray(grid, jnp.float32)},
        varied=OPERANDS,
        cotangent=normal(shape.batch, *shape.points, shape.channels),
        dtype=dtype,
        options={},
    )


SAMPLING = Operator(
    name="grid_sample",
    function=jax_dcn.grid_sample,
    shapes={
        "S1": Shape("flow warp", 2, (256, 448), 64, (256, 448), warps=True),
        "S2": Shape("points of masks", 100, (256, 256), 1, (12544,)),
        "S3": Shape("spatial transformer", 16, (224, 224), 3, (224, 224), warps=True),
        "S4": Shape("volumes", 2, (32, 64, 64), 32, (32, 64, 64), warps=True),
        "S5": Shape("scalar field", 1, (512, 512), 1, (10**6,)),
    },
    problem=problem,
    implementations=compiled.in_jax(jax_dcn.grid_sample, OPERANDS)
    | {"PyTorch": pytorch.implementation(pytorch.grid_sample, pytorch.float32_type)},
)


class Field(NamedTuple):
    """A scalar field, sampled at points anywhere in it, or near each of its pixels if their number is None."""

    size: tuple[int, ...]
    points: int | None
    order: int = 3

    def __str__(self):
        points = "warped" if self.points is None else f"{self.points} points"
        return f"order {self.order}: {' x '.join(map(str, self.size))}, {points}"


def problem_of_field(field, dtype):
    random = np.random.default_rng(0)
    if field.points is None:
        coordinates = [pixel.ravel() + random.normal(size=pixel.size) for pixel in np.indices(field.size)]
    else:
        coordinates = [random.uniform(0, size - 1, field.points) for size in field.size]
    return Problem(
        operands={
            "input": jnp.asarray(random.standard_normal(field.size, np.float32), dtype),
            "coordinates": jnp.asarray(np.stack(coordinates), jnp.float32),
        },
        varied=FIELD if field.order else ("input",),
        cotangent=jnp.asarray(random.standard_normal(coordinates[0].size, np.float32), dtype),
        dtype=dtype,
        options={"order": field.order, "mode": "mirror" if field.order > 1 else "nearest"},
    )


def with_scipy(problem, backward):
    if backward or problem.dtype != "float32":
        raise Unavailable("has no gradients, and no bfloat16")
    operands = {name: np.asarray(array) for name, array in problem.operands.items()}
    return Call(
        partial(scipy.ndimage.map_coordinates, **operands, **problem.options),
        arrays=lambda y: {"y": y},
        held=memory.of_process,
    )


def with_jax_scipy(problem, backward):
    if problem.options["order"] > 1:
        raise Unavailable("has orders 0 and 1 only")
    return compiled.prepare(jax.scipy.ndimage.map_coordinates, FIELD, problem, backward)


FIELDS = Operator(
    name="map_coordinates",
    function=jax_dcn.map_coordinates,
    shapes={
        "K1": Field((512, 512), 10**6),
        "K2": Field((96, 96, 96), 10**6),
        "K3": Field((512, 512), 10**6, order=1),
        "K4": Field((1024, 1024), None, order=1),
        "K5": Field((128, 128, 128), None, order=1),
        "K6": Field((512, 512), 10**6, order=0),
    },
    problem=problem_of_field,
    implementations=compiled.in_jax(jax_dcn.map_coordinates, FIELD)
    | {"jax.scipy": Implementation(with_jax_scipy), "SciPy": Implementation(with_scipy, compiles=False)},
)
