"""The anchors of mmdet, and boxes that are encoded relative to anchors or regions."""

import math
from functools import partial

import numpy as np

from examples.library import boxes

STRIDES = (4, 8, 16, 32, 64)
RATIOS = (0.5, 1.0, 2.0)
SCALE = 8
MAX_LOG_SCALE = math.log(1000 / 16)
MIN_SIDE = 1e-3  # padding has no area; mmdet has no limit

encode = partial(boxes.encode, min_side=MIN_SIDE)
decode = partial(boxes.decode, min_side=MIN_SIDE, log_scales=(-MAX_LOG_SCALE, MAX_LOG_SCALE))


def anchors(height: int, width: int, stride: int) -> np.ndarray:
    """Anchors of all `RATIOS` (height to width) at each cell of a feature map: [height · width · 3, 4] in pixels.

    They are (x0, y0, x1, y1). The anchors of the first cell have their centres at 0.

    >>> anchors(1, 2, 4)[[1, 4]].tolist()
    [[-16.0, -16.0, 16.0, 16.0], [-12.0, -16.0, 20.0, 16.0]]
    """
    ratios = np.sqrt(np.float32(RATIOS))
    half = np.stack([1 / ratios, ratios], -1) * np.float32(stride * SCALE / 2)
    y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    centres = (stride * np.stack([x, y], -1)).reshape(-1, 1, 2).astype(np.float32)
    return np.concatenate([centres - half, centres + half], -1).reshape(-1, 4)
