"""The anchors of mmdet, and boxes that are encoded relative to anchors or regions."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from examples.library import boxes

STRIDES = (4, 8, 16, 32, 64)
MAX_LOG_SCALE = math.log(1000 / 16)
MIN_SIDE = 1e-3  # padding has no area; mmdet has no limit

encode = partial(boxes.encode, min_side=MIN_SIDE)
decode = partial(boxes.decode, min_side=MIN_SIDE, max_log_scale=MAX_LOG_SCALE)


def anchors(
    height: int, width: int, stride: int, scales: Sequence[float] = (8,), ratios: Sequence[float] = (0.5, 1, 2)
) -> np.ndarray:
    """Anchors of all ratios (height to width) and scales at each cell of a feature map: [height · width · n, 4].

    They are (x0, y0, x1, y1) in pixels; scales are in strides. The anchors of the first cell have their centres at 0.

    >>> anchors(1, 2, 4)[[1, 4]].tolist()
    [[-16.0, -16.0, 16.0, 16.0], [-12.0, -16.0, 20.0, 16.0]]
    """
    roots = np.sqrt(np.float32(ratios))
    sides = np.stack([1 / roots, roots], -1)[:, None] * np.float32(stride * np.float32(scales) / 2)[:, None]
    half = sides.reshape(-1, 2)
    y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    centres = (stride * np.stack([x, y], -1)).reshape(-1, 1, 2).astype(np.float32)
    return np.concatenate([centres - half, centres + half], -1).reshape(-1, 4)
