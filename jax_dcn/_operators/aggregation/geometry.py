"""Where the taps of an aggregation sample: in the levels of a feature pyramid, or on a window that offsets move."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_dcn._operators.bilinear import output_size, rounded_product
from jax_dcn._types import Shaped


class Level(NamedTuple):
    """A feature map of the value, and the number of taps that sample it, per query and head."""

    height: int
    width: int
    points: int


@dataclass(frozen=True)
class Pyramid:
    """The geometry of multi-scale deformable attention: a location is a fraction of the level of its tap.

    If `discrete`, a tap reads a single pixel, and has no derivative in its location.
    """

    levels: tuple[Level, ...]
    discrete: bool

    image_dims = 1  # of a value's pixels, and of its queries

    @property
    def taps(self) -> int:
        return sum(level.points for level in self.levels)

    @property
    def pixels(self) -> int:
        return sum(level.height * level.width for level in self.levels)


@dataclass(frozen=True)
class DCNv3Window:
    """The geometry of DCNv3 and DCNv4: a location is an offset, in pixels, from a tap of a convolution's window.

    Taps are counted column by column. Pairs are (vertical, horizontal).
    """

    kernel_size: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    kernel_dilation: tuple[int, int]
    offset_scale: float
    remove_center: bool

    image_dims = 2

    @property
    def taps(self) -> int:
        return window_taps(self.kernel_size, self.remove_center)

    def output_size(self, image_size: Sequence[int]) -> tuple[int, ...]:
        return output_size(image_size, self.kernel_size, self.strides, self.padding, self.kernel_dilation)


Spec = Pyramid | DCNv3Window


def window_taps(kernel_size: Sequence[int], remove_center: bool) -> int:
    return kernel_size[0] * kernel_size[1] - remove_center


def levels_of(spec: Spec, value: Shaped) -> tuple[Level, ...]:
    """The levels of a value; a window has one, the image [..., H, W, M, D]."""
    if isinstance(spec, Pyramid):
        return spec.levels
    height, width = value.shape[-4:-2]
    return (Level(height, width, spec.taps),)


class TapLevels(NamedTuple):
    """The level that each tap samples: arrays [T], or numbers where all taps sample the same."""

    height: Any
    width: Any
    first_pixel: Any  # of the level, among those of the value


def tap_levels(spec: Spec, value: Shaped) -> TapLevels:
    levels = levels_of(spec, value)
    if len(levels) == 1:
        return TapLevels(levels[0].height, levels[0].width, 0)
    height, width, points = np.array(levels).T
    first_pixel = np.cumsum([0, *(height * width)[:-1]])
    return TapLevels(*(np.repeat(array, points) for array in (height, width, first_pixel)))


def bilinear_positions(locations: Any, levels: TapLevels) -> tuple[jax.Array, jax.Array]:
    """The positions y and x, in pixels of the level, of locations [..., T, 2], which are fractions of it in (x, y)."""
    return (
        rounded_product(locations[..., 1], levels.height) - 0.5,
        rounded_product(locations[..., 0], levels.width) - 0.5,
    )


def discrete_pixels(locations: Any, levels: TapLevels) -> tuple[jax.Array, jax.Array]:
    """The row and the column of the pixel that each of the locations [..., T, 2] reads, without "bilinear"'s -1/2."""

    def along(location: Any, size: Any) -> jax.Array:
        position = jnp.clip(rounded_product(location, size) + 0.5, 0, size - 1)
        return jnp.where(jnp.isnan(position), 0, position).astype(jnp.int32)

    return along(locations[..., 1], levels.height), along(locations[..., 0], levels.width)


def window_positions(
    offsets: Any, window: DCNv3Window, origin: tuple[ArrayLike, ArrayLike] = (0, 0)
) -> tuple[jax.Array, jax.Array]:
    """The positions y and x, in pixels, each [..., rows, columns, M, T], of offsets [..., rows, columns, M, T, 2].

    The offsets are (dx, dy), of the queries' rows and columns from `origin` on.
    """
    tap_x, tap_y = _cells(window)
    rows, columns = offsets.shape[-5:-3]

    def along(axis: int, length: int, tap: Any, offset: Any) -> jax.Array:
        half = window.kernel_dilation[axis] * (window.kernel_size[axis] - 1) // 2
        # A symbolic length, of an exported function, needs jax's.
        arange: Any = np.arange if isinstance(length, int) else jnp.arange
        center = (origin[axis] + arange(length)) * window.strides[axis] - window.padding[axis][0] + half
        center = center.reshape((-1, 1, 1, 1) if axis == 0 else (-1, 1, 1))
        distance = tap * window.kernel_dilation[axis] - half
        return center + rounded_product(distance + offset, window.offset_scale)

    return along(0, rows, tap_y, offsets[..., 1]), along(1, columns, tap_x, offsets[..., 0])


def _cells(window: DCNv3Window) -> tuple[Any, Any]:
    """The column and the row of each tap in the window."""
    rows, columns = window.kernel_size
    taps = np.arange(rows * columns)
    if window.remove_center:
        taps = np.delete(taps, columns // 2 * rows + rows // 2)
    return np.divmod(taps, rows)
