"""Where a deformable convolution samples. Arrays may be of numpy or of jax."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._operators.bilinear import is_inside, output_size
from jax_dcn._types import Padding, Shaped, Sizes

Size = Sequence[int]  # along each axis of the image
OUTPUT_AXES = {2: ("rows", "columns"), 3: ("planes", "rows", "columns")}  # by the number of axes


@dataclass(frozen=True)
class Window:
    """The static parameters that, with the offsets, determine the sampling locations."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    kernel_dilation: tuple[int, ...]
    circular: bool

    @property
    def dims(self) -> int:
        """The number of axes of the image."""
        return len(self.strides)

    def output_size(self, image_size: Size, kernel_size: Size) -> tuple[int, ...]:
        return output_size(image_size, kernel_size, self.strides, self.padding, self.kernel_dilation)


def resolve(image_size: Size, kernel_size: Size, *, strides: Sizes, padding: Padding, kernel_dilation: Sizes) -> Window:
    """The window that a user's arguments mean for an image of this size."""
    strides = _validation.sizes("strides", strides, len(kernel_size))
    kernel_dilation = _validation.sizes("kernel_dilation", kernel_dilation, len(kernel_size))
    pads, circular = _validation.padding(padding, image_size, kernel_size, strides, kernel_dilation)
    return Window(strides, pads, kernel_dilation, circular)


def offset_channels(kernel_size: Size, offset_groups: int = 1) -> int:
    """The number of channels of an offset: a coordinate of each axis for each group and tap."""
    return len(kernel_size) * offset_groups * math.prod(kernel_size)


def groups_and_taps(offset: Shaped, kernel_size: Size) -> tuple[int, int]:
    """The number of offset groups and the number of taps of offset [..., G·K·dims]."""
    return offset.shape[-1] // offset_channels(kernel_size), math.prod(kernel_size)


def fits(offset: Shaped, output_size: Size, kernel_size: Size) -> bool:
    """Whether offset is [..., *output_size, G·K·dims], with at least one offset group."""
    groups, _ = groups_and_taps(offset, kernel_size)
    expected = (*output_size, offset_channels(kernel_size, groups))
    return tuple(offset.shape[-len(expected) :]) == expected and groups >= 1


def check_offset(offset: Shaped, image_size: Size, kernel_size: Size, window: Window) -> None:
    """Raises ValueError unless offset [..., *output size, G·K·dims] fits an image of this size."""
    size = window.output_size(image_size, kernel_size)
    if not fits(offset, size, kernel_size):
        raise ValueError(
            f"offset must have shape (..., {', '.join(map(str, size))}, G·{offset_channels(kernel_size)}) for "
            f"image_size={tuple(image_size)} and {kernel_shown(kernel_size)} kernel, G the number of offset groups, "
            f"got {tuple(offset.shape)}"
        )


def kernel_shown(kernel_size: Size) -> str:
    """The size of a kernel with its article, before the word "kernel" in messages: a 3x3."""
    return f"a {'x'.join(map(str, kernel_size))}" if len(kernel_size) > 1 else f"a {kernel_size[0]}-tap"


def locations(offset: Any, kernel_size: Size, window: Window, origin: Sequence[ArrayLike] = ()) -> tuple[Any, ...]:
    """The sampling locations along each axis, each [..., *output size, K, G], of offset [..., *output size, G·K·dims].

    The offset is that of the output from index `origin` on, by default from its beginning.
    """
    groups, taps = groups_and_taps(offset, kernel_size)
    dims = len(kernel_size)
    offset = offset.reshape(*offset.shape[:-1], groups, taps, dims).swapaxes(-3, -2)
    regular = grid(offset.shape[-dims - 3 : -3], kernel_size, window, origin)
    return tuple(position + offset[..., axis] for axis, position in enumerate(regular))


def grid(output_size: Size, kernel_size: Size, window: Window, origin: Sequence[Any] = ()) -> tuple[Any, ...]:
    """The sampling grid, which has no offsets, along each axis: [1, …, the axis' output size, …, 1, K, 1]."""
    taps = np.unravel_index(np.arange(math.prod(kernel_size)), tuple(kernel_size))

    def along(axis: int) -> Any:
        length = output_size[axis]
        # A symbolic length, of an exported function, needs jax's.
        arange: Any = np.arange if isinstance(length, int) else jnp.arange
        start = origin[axis] if origin else 0
        first = (start + arange(length)) * window.strides[axis] - window.padding[axis][0]
        positions = first[:, None] + taps[axis] * window.kernel_dilation[axis]
        others = [1] * len(kernel_size)
        return positions.reshape(*others[:axis], length, *others[axis + 1 :], len(taps[axis]), 1)

    return tuple(map(along, range(len(kernel_size))))


def reads(positions: Sequence[Any], image_size: Size, window: Window) -> Any:
    """Whether samples at these positions read the image."""
    inside = (is_inside(*axis, window.circular) for axis in zip(positions, image_size, strict=True))
    return reduce(operator.and_, inside)
