"""The operands that tests share, random problems of any shape, and the folder of the golden files."""

import dataclasses
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from tests.helpers.case import Case

from . import numpy_reference

GOLDEN = pathlib.Path(__file__).parents[2] / "golden/aggregation"


class Operands(NamedTuple):
    """The array arguments of both functions, in their order: value or x, locations or offset, weights or mask."""

    value: Any
    locations: Any
    weights: Any


@dataclasses.dataclass(frozen=True)
class Attention(Case):
    """A multi_scale_deformable_attention, with uneven points."""

    spatial_shapes: tuple[tuple[int, int], ...] = ((5, 6), (3, 2))
    points: tuple[int, ...] = (2, 3)
    queries: int = 6
    heads: int = 4
    channels: int = 6
    method: str = "bilinear"
    on_grid: bool = False

    function, reference = "multi_scale_deformable_attention", numpy_reference
    result = property(lambda self: (self.queries, self.heads * self.channels))

    @property
    def keywords(self):
        return {"spatial_shapes": self.spatial_shapes, "points": self.points, "method": self.method}

    def operands(self, seed=0, lead=()):
        random = np.random.default_rng(seed)
        pixels = sum(math.prod(size) for size in self.spatial_shapes)
        taps = (*lead, self.queries, self.heads, sum(self.points))
        value = random.normal(size=(*lead, pixels, self.heads, self.channels))
        locations = random.uniform(-0.4, 1.4, size=(*taps, 2))
        if self.on_grid:  # on pixels, their edges and the border; exact for sizes that are powers of two
            sizes = [(width, height) for height, width in self.spatial_shapes]
            size = np.repeat(np.array(sizes), self.points, axis=0)
            locations = random.integers(-3, 2 * size + 4, (*taps, 2)) / (2 * size)
        return Operands(value, locations, random.normal(size=taps))


@dataclasses.dataclass(frozen=True)
class Convolution(Case):
    """A dcnv3."""

    kernel_size: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((1, 1), (1, 1))
    kernel_dilation: tuple[int, int] = (1, 1)
    offset_scale: float = 1.0
    remove_center: bool = False
    groups: int = 4
    channels: int = 6
    image: tuple[int, int] = (7, 5)
    on_grid: bool = False

    function, reference = "dcnv3", numpy_reference
    result = property(lambda self: (*self.output_size, self.groups * self.channels))

    @property
    def keywords(self):
        names = ("kernel_size", "strides", "padding", "kernel_dilation", "offset_scale", "remove_center", "groups")
        return {name: getattr(self, name) for name in names}

    @property
    def taps(self):
        return math.prod(self.kernel_size) - self.remove_center

    @property
    def output_size(self):
        parts = zip(self.image, self.kernel_size, self.strides, self.padding, self.kernel_dilation, strict=True)
        return tuple((n + sum(pads) - (k - 1) * d - 1) // s + 1 for n, k, s, pads, d in parts)

    def operands(self, seed=0, lead=()):
        random = np.random.default_rng(seed)
        taps = (*lead, *self.output_size, self.groups * self.taps)
        x = random.normal(size=(*lead, *self.image, self.groups * self.channels))
        shape = (*taps[:-1], 2 * taps[-1])
        offset = random.integers(-4, 5, shape) / 2 if self.on_grid else random.normal(size=shape) * 1.5
        return Operands(x, offset, random.normal(size=taps))


CASES = {
    "attention": Attention(),
    "attention_on_pixels": Attention(((4, 8), (2, 2)), (3, 3), on_grid=True),
    "discrete": Attention(((4, 8), (2, 3)), (3, 1), method="discrete"),
    "discrete_on_edges": Attention(((4, 8), (2, 2)), (3, 3), method="discrete", on_grid=True),
    "one_channel": Attention(channels=1, heads=3),
    "many_channels": Attention(channels=70, heads=2, queries=3),
    "more_taps_than_are_located_at_a_time": Attention(((6, 7),), (300,), 5, 3, 11),
    "dcnv3": Convolution(),
    "remove_center": Convolution(remove_center=True, padding=((0, 2), (1, 0))),
    "strided_dilated": Convolution((2, 5), (2, 1), ((1, 1), (4, 4)), (1, 2), offset_scale=1.7),
    "sparse": Convolution((1, 1), (4, 4), ((0, 0), (0, 0)), image=(13, 12)),
    "dcnv3_on_pixels": Convolution(on_grid=True, offset_scale=0.5),
}


@st.composite
def cases(draw):
    """Problems of any shape."""

    def pair(least, most):
        return draw(st.tuples(st.integers(least, most), st.integers(least, most)))

    on_grid = draw(st.booleans())
    heads, channels = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    if draw(st.booleans()):
        side = st.sampled_from([1, 2, 4]) if on_grid else st.integers(1, 5)
        levels = draw(st.lists(st.tuples(side, side), min_size=1, max_size=3))
        points = tuple(draw(st.integers(1, 3)) for _ in levels)
        method = draw(st.sampled_from(["bilinear", "discrete"]))
        return Attention(tuple(levels), points, draw(st.integers(1, 5)), heads, channels, method, on_grid)
    kernel_size = pair(1, 3)
    padding = tuple(draw(st.tuples(st.integers(1, 3), st.integers(0, 3))) for _ in range(2))
    dilation = pair(1, 2)
    image = tuple(draw(st.integers(1, 3)) + k * d for k, d in zip(kernel_size, dilation, strict=True))
    scale = draw(st.sampled_from([0.5, 1.0, 2.0] if on_grid else [0.7071, 1.2357]))
    remove_center = draw(st.booleans()) and math.prod(kernel_size) > 1
    return Convolution(
        kernel_size, pair(1, 2), padding, dilation, scale, remove_center, heads, channels, image, on_grid
    )
