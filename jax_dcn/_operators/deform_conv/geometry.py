"""Where a deformable convolution samples. Arrays may be of numpy or of jax."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._operators.bilinear import is_inside, output_size
from jax_dcn._types import Padding, Pair, Shaped

Size = Sequence[int]  # (rows, columns)


@dataclass(frozen=True)
class Window:
    """The static parameters that, with the offsets, determine the sampling locations."""

    strides: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    kernel_dilation: tuple[int, int]
    circular: bool

    def output_size(self, image_size: Size, kernel_size: Size) -> tuple[int, ...]:
        return output_size(image_size, kernel_size, self.strides, self.padding, self.kernel_dilation)


def resolve(image_size: Size, kernel_size: Size, *, strides: Pair, padding: Padding, kernel_dilation: Pair) -> Window:
    """The window that a user's arguments mean for an image of this size."""
    strides = _validation.pair("strides", strides)
    kernel_dilation = _validation.pair("kernel_dilation", kernel_dilation)
    pads, circular = _validation.padding(padding, image_size, kernel_size, strides, kernel_dilation)
    return Window(strides, pads, kernel_dilation, circular)


def offset_channels(kernel_size: Size, offset_groups: int = 1) -> int:
    """The number of channels of an offset: dy and dx for each group and tap."""
    return 2 * offset_groups * kernel_size[0] * kernel_size[1]


def groups_and_taps(offset: Shaped, kernel_size: Size) -> tuple[int, int]:
    """The number of offset groups and the number of taps of offset [..., G·K·2]."""
    return offset.shape[-1] // offset_channels(kernel_size), kernel_size[0] * kernel_size[1]


def fits(offset: Shaped, output_size: Size, kernel_size: Size) -> bool:
    """Whether offset is [..., *output_size, G·K·2], with at least one offset group."""
    groups, _ = groups_and_taps(offset, kernel_size)
    return tuple(offset.shape[-3:]) == (*output_size, offset_channels(kernel_size, groups)) and groups >= 1


def check_offset(offset: Shaped, image_size: Size, kernel_size: Size, window: Window) -> None:
    """Raises ValueError unless offset [..., Ho, Wo, G·K·2] fits an image of this size."""
    size = window.output_size(image_size, kernel_size)
    if not fits(offset, size, kernel_size):
        raise ValueError(
            f"offset must have shape (..., {size[0]}, {size[1]}, G·{offset_channels(kernel_size)}) for "
            f"image_size={tuple(image_size)} and a {kernel_size[0]}x{kernel_size[1]} kernel, G the number of offset "
            f"groups, got {tuple(offset.shape)}"
        )


def locations(
    offset: Any, kernel_size: Size, window: Window, origin: tuple[ArrayLike, ArrayLike] = (0, 0)
) -> tuple[Any, Any]:
    """The sampling locations y and x, each [..., Ho, Wo, K, G], of offset [..., Ho, Wo, G·K·2].

    The offset is that of the output's rows and columns from `origin` on.
    """
    groups, taps = groups_and_taps(offset, kernel_size)
    offset = offset.reshape(*offset.shape[:-1], groups, taps, 2).swapaxes(-3, -2)
    grid_y, grid_x = grid(offset.shape[-5:-3], kernel_size, window, origin)
    return grid_y + offset[..., 0], grid_x + offset[..., 1]


def grid(output_size: Size, kernel_size: Size, window: Window, origin: tuple[Any, Any] = (0, 0)) -> tuple[Any, Any]:
    """The sampling grid, which has no offsets: y [rows, 1, K, 1] and x [1, columns, K, 1]."""
    tap_y, tap_x = np.divmod(np.arange(kernel_size[0] * kernel_size[1]), kernel_size[1])

    def along(axis: int, taps: Any) -> Any:
        length = output_size[axis]
        # A symbolic length, of an exported function, needs jax's.
        arange: Any = np.arange if isinstance(length, int) else jnp.arange
        first = (origin[axis] + arange(length)) * window.strides[axis] - window.padding[axis][0]
        return first[:, None] + taps * window.kernel_dilation[axis]

    return along(0, tap_y)[:, None, :, None], along(1, tap_x)[None, :, :, None]


def reads(y: Any, x: Any, image_size: Size, window: Window) -> Any:
    """Whether samples at these positions read the image."""
    return is_inside(y, image_size[0], window.circular) & is_inside(x, image_size[1], window.circular)
