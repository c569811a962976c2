"""The operands that tests share, random problems of any shape, and the folder of the golden files."""

import dataclasses
import pathlib
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from tests.helpers.case import Case

from . import numpy_reference

GOLDEN = pathlib.Path(__file__).parents[2] / "golden/sampling"
METHODS, PADDING_MODES = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
MODES = ("constant", "nearest", "wrap", "mirror", "reflect")


class Operands(NamedTuple):
    """The array arguments, in their order: x or input, grid or coordinates."""

    x: Any
    locations: Any


@dataclasses.dataclass(frozen=True)
class Grid(Case):
    """A grid_sample. With `on_grid`, positions are exact: on centres, edges and between them."""

    image: tuple[int, ...] = (5, 4)
    points: tuple[int, ...] = (3, 4)
    channels: int = 6
    method: str = "bilinear"
    padding_mode: str = "zeros"
    align_corners: bool = False
    on_grid: bool = False

    function, reference = "grid_sample", numpy_reference
    result = property(lambda self: (*self.points, self.channels))

    @property
    def keywords(self):
        return {name: getattr(self, name) for name in ("method", "padding_mode", "align_corners")}

    def operands(self, seed=0, lead=()):
        random = np.random.default_rng(seed)
        shape = (*lead, *self.points, len(self.image))
        grid = random.uniform(-1.6, 1.6, shape)
        if self.on_grid:
            size = np.array(self.image[::-1])
            pixels = random.integers(-2 * size - 3, 4 * size + 3, shape) / 2
            grid = pixels * 2 / np.maximum(size - 1, 1) - 1 if self.align_corners else (2 * pixels + 1) / size - 1
        return Operands(random.normal(size=(*lead, *self.image, self.channels)), grid)


@dataclasses.dataclass(frozen=True)
class Map(Case):
    """A map_coordinates of an input with channels."""

    image: tuple[int, ...] = (5, 4)
    points: tuple[int, ...] = (3, 4)
    channels: int = 2
    order: int = 1
    mode: str = "constant"
    on_grid: bool = False

    function, reference = "map_coordinates", numpy_reference
    result = property(lambda self: (*self.points, self.channels))
    keywords = property(lambda self: {"order": self.order, "mode": self.mode})

    def operands(self, seed=0):
        random = np.random.default_rng(seed)
        size = np.array(self.image)[(...,) + (None,) * len(self.points)]
        shape = (len(self.image), *self.points)
        if self.on_grid:
            coordinates = random.integers(-4 * size - 6, 6 * size + 6, shape) / 2
        else:
            coordinates = random.uniform(-2 * size - 3, 3 * size + 3, shape)
        return Operands(random.normal(size=(*self.image, self.channels)), coordinates)


CASES = {
    "more_points_than_are_located_at_a_time": Grid((7, 6), (15, 11), 1, "bilinear", "border"),
    "three_channels": Grid((7, 6), (9, 11), 3, "bilinear", "reflection", True),
    "four_channels": Grid((3, 4, 5), (4, 9), 4, "bilinear", "border"),
    "many_points_of_a_pixel": Grid((1, 2), (700,), 3, padding_mode="border"),
    "many_channels": Grid((3, 2, 4), (2, 3), 70, padding_mode="reflection"),
    "bicubic": Grid(method="bicubic", padding_mode="reflection"),
    "bicubic_of_two_channels": Grid((2, 3), (5,), 2, "bicubic", "border", True),
    "nearest": Grid((4, 2, 2), (4, 5), 3, "nearest", on_grid=True),
    "on_centres_and_edges": Grid((4, 8), (9, 9), 5, "bilinear", "reflection", on_grid=True),
    "one_axis": Map((9,), (7,), 1, 1, "mirror"),
    "three_axes": Map((3, 4, 2), (5, 2), 5, 1, "reflect"),
    "rounded": Map((5, 3), (20,), 4, 0, "wrap", on_grid=True),
    "one_pixel": Map((1, 1), (12,), 2, 1, "mirror", on_grid=True),
}


@st.composite
def cases(draw):
    """Problems of any shape."""
    on_grid, channels = draw(st.booleans()), draw(st.sampled_from([1, 2, 3, 4, 5, 8, 19]))
    points = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    if draw(st.booleans()):
        image = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
        return Map(image, points, channels, draw(st.integers(0, 1)), draw(st.sampled_from(MODES)), on_grid)
    align = draw(st.booleans())
    side = st.sampled_from([1, 2, 3, 5] if align else [1, 2, 4, 8]) if on_grid else st.integers(1, 5)
    image = tuple(draw(st.lists(side, min_size=2, max_size=3)))
    method = draw(st.sampled_from(METHODS if len(image) == 2 else METHODS[:2]))
    return Grid(image, points, channels, method, draw(st.sampled_from(PADDING_MODES)), align, on_grid)
