"""Multi-scale deformable attention: shapes, operands and contenders."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.contenders import Contender, Problem, bare_loop, compiled, grid_sample, pure_jax

NAME = "multi_scale_deformable_attention"
FLOORS = (bare_loop.NAME,)
ABOUT_FLOORS = bare_loop.ABOUT
OPERANDS = ("value", "sampling_locations", "attention_weights")
CHANNELS, POINTS = 32, 4  # of a head; of a head on each level


class Shape(NamedTuple):
    """Queries that sample square levels. Without `queries`, each pixel is a query, which samples around itself."""

    batch: int
    sizes: tuple[int, ...]
    queries: int | None = None
    heads: int = 8

    def __str__(self):
        queries = "each pixel" if self.queries is None else f"{self.queries} queries"
        levels = ", ".join(f"{size}²" for size in self.sizes)
        return f"{queries} of {self.batch} examples, levels {levels}, {self.heads} heads of {CHANNELS}, {POINTS} points"


SHAPES = {
    "M1": Shape(2, (64, 32, 16, 8)),  # an encoder
    "M2": Shape(2, (64, 32, 16, 8), queries=300),  # a decoder
}


def problem(shape, dtype):
    random = np.random.default_rng(0)
    pixels = sum(size**2 for size in shape.sizes)
    levels = np.array(shape.sizes)[:, None, None]
    if shape.queries is None:
        centers = np.concatenate([grid(size) for size in shape.sizes])[:, None, None, None]
        scattered = 2 / levels * random.standard_normal((shape.batch, pixels, shape.heads, len(levels), POINTS, 2))
        locations = centers + scattered
    else:
        locations = random.random((shape.batch, shape.queries, shape.heads, len(levels), POINTS, 2))
    weights = random.random(locations.shape[:-1])
    weights /= weights.sum((-1, -2), keepdims=True)

    def normal(*size):
        return jnp.asarray(random.standard_normal(size, np.float32), dtype)

    return Problem(
        operands={
            "value": normal(shape.batch, pixels, shape.heads, CHANNELS),
            "sampling_locations": jnp.asarray(locations, jnp.float32),
            "attention_weights": jnp.asarray(weights, jnp.float32),
        },
        varied=OPERANDS,
        cotangent=normal(shape.batch, locations.shape[1], shape.heads * CHANNELS),
        dtype=dtype,
        options={"spatial_shapes": tuple((size, size) for size in shape.sizes)},
    )


def grid(size):
    """The centres of a level's pixels, row by row, as fractions (x, y)."""
    rows, columns = np.divmod(np.arange(size**2), size)
    return (np.stack([columns, rows], 1) + 0.5) / size


CONTENDERS = {
    "jax_dcn": compiled.contender(jax_dcn.multi_scale_deformable_attention, OPERANDS),
    bare_loop.NAME: Contender(bare_loop.prepare_attention),
    "pure JAX": compiled.contender(pure_jax.multi_scale_deformable_attention, OPERANDS),
    "PyTorch": Contender(grid_sample.prepare, compiles=False),
    "reference": compiled.contender(partial(jax_dcn.multi_scale_deformable_attention, backend="reference"), OPERANDS),
}
