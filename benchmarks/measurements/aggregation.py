"""Deformable aggregation: multi-scale deformable attention, and DCNv3, which is also the operator of DCNv4."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.baselines import Operator, Problem, compiled, pytorch

ATTENTION_OPERANDS, DCNV3_OPERANDS = ("value", "sampling_locations", "attention_weights"), ("x", "offset", "mask")
LEVELS = ((64, 64), (32, 32), (16, 16), (8, 8))
CHANNELS, POINTS = 32, 4  # of a head or a group; of a head on each level


class Attention(NamedTuple):
    """Queries that sample levels of (height, width). Without `queries`, each pixel is one and samples around itself."""

    batch: int
    sizes: tuple[tuple[int, int], ...]
    queries: int | None = None
    heads: int = 8

    def __str__(self):
        queries = "each pixel" if self.queries is None else f"{self.queries} queries"
        levels = ", ".join(f"{height} x {width}" for height, width in self.sizes)
        return f"{queries} of {self.batch} examples, levels {levels}, {self.heads} heads of {CHANNELS}, {POINTS} points"


class Window(NamedTuple):
    """A 3x3 window of DCNv3 on x [batch, size, size, groups · CHANNELS]."""

    batch: int
    size: int
    groups: int

    def __str__(self):
        return f"{self.batch} x {self.size} x {self.size}, {self.groups} groups of {CHANNELS}"


def attention_problem(shape, dtype):
    random, pixels = np.random.default_rng(0), sum(height * width for height, width in shape.sizes)
    levels = np.array(shape.sizes)[:, None, ::-1]  # width and height
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
        varied=ATTENTION_OPERANDS,
        cotangent=normal(shape.batch, locations.shape[1], shape.heads * CHANNELS),
        dtype=dtype,
        options={"spatial_shapes": shape.sizes},
    )


def grid(size):
    """The centres of a level's pixels, row by row, as fractions (x, y)."""
    height, width = size
    rows, columns = np.divmod(np.arange(height * width), width)
    return (np.stack([columns, rows], 1) + 0.5) / (width, height)


def dcnv3_problem(shape, dtype):
    random = np.random.default_rng(0)
    size = (shape.batch, shape.size, shape.size)
    taps = 9 * shape.groups

    def normal(channels, dtype=dtype):
        return jnp.asarray(random.standard_normal((*size, channels), np.float32), dtype)

    return Problem(
        operands={
            "x": normal(shape.groups * CHANNELS),
            "offset": normal(2 * taps, jnp.float32),
            "mask": jnp.asarray(random.random((*size, taps), np.float32)),
        },
        varied=DCNV3_OPERANDS,
        cotangent=normal(shape.groups * CHANNELS),
        dtype=dtype,
        options={"kernel_size": 3, "padding": 1, "groups": shape.groups},
    )


ATTENTION = Operator(
    name="multi_scale_deformable_attention",
    function=jax_dcn.multi_scale_deformable_attention,
    shapes={
        "M1": Attention(2, LEVELS),  # an encoder
        "M2": Attention(2, LEVELS, queries=300),  # a decoder
        # The decoder of which https://github.com/roulbac/msda-triton has times on an H100.
        "M3": Attention(4, ((100, 167), (50, 84), (25, 42), (13, 21)), queries=300),
    },
    problem=attention_problem,
    implementations=compiled.in_jax(jax_dcn.multi_scale_deformable_attention, ATTENTION_OPERANDS)
    | {"PyTorch": pytorch.implementation(pytorch.attention, pytorch.float32_type, layout="nhwc")},
)
DCNV3 = Operator(
    name="dcnv3",
    function=jax_dcn.dcnv3,
    # The first three stages of InternImage, for images of 224 x 224.
    shapes={"W1": Window(2, 56, 4), "W2": Window(2, 28, 8), "W3": Window(2, 14, 16)},
    problem=dcnv3_problem,
    implementations=compiled.in_jax(jax_dcn.dcnv3, DCNV3_OPERANDS),
)
