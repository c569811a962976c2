"""The anchors of mmdet, and the region proposal network (Ren et al., arXiv 1506.01497)."""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Dtype

from examples.library import boxes
from examples.library.boxes import Boxes, clip
from examples.library.layers import Conv, relu
from jax_dcn import nms

from .config import Config, Proposals

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


class AnchorPredictions(NamedTuple):
    """One item per level: anchors [n, 4], logits [batch, n] of containing an object, and deltas [batch, n, 4].

    The deltas are those of `encode`, whatever the head divides them by.
    """

    anchors: list[jax.Array]
    logits: list[jax.Array]
    deltas: list[jax.Array]


class RPNHead(nn.Module):
    """The features of all levels to `AnchorPredictions`, of float32."""

    config: Config
    dtype: Dtype | None = None

    def setup(self):
        count, conv = self.config.anchors_per_cell, partial(Conv, dtype=self.dtype)
        self.rpn_conv = conv(self.config.channels, (3, 3), padding=1)
        self.rpn_cls = conv(count, (1, 1), kernel_init=nn.initializers.normal(0.01))
        self.rpn_reg = conv(4 * count, (1, 1), kernel_init=nn.initializers.normal(0.01))

    def __call__(self, features: Sequence[jax.Array]) -> AnchorPredictions:
        hidden = [relu(self.rpn_conv(feature)) for feature in features]
        of_cells = self.config.anchor_scales, self.config.anchor_ratios
        stds = jnp.array(self.config.anchor_stds)
        return AnchorPredictions(
            [jnp.asarray(anchors(*x.shape[1:3], stride, *of_cells)) for x, stride in zip(hidden, STRIDES, strict=True)],
            [self.rpn_cls(x).reshape(x.shape[0], -1).astype(jnp.float32) for x in hidden],
            [self.rpn_reg(x).reshape(x.shape[0], -1, 4) * stds for x in hidden],
        )


def propose(predictions: AnchorPredictions, height: int, width: int, settings: Proposals) -> tuple[Boxes, jax.Array]:
    """The best boxes after non-maximum suppression on each level, and their scores [batch, n], best first.

    height, width: of the images without their padding.
    """
    boxes, logits, levels = [], [], []
    for level, (base, logit, delta) in enumerate(zip(*jax.lax.stop_gradient(predictions), strict=True)):
        best, chosen = jax.lax.top_k(logit, min(settings.per_level, logit.shape[1]))
        boxes.append(clip(decode(take(delta, chosen), base[chosen]), height, width))
        logits.append(best)
        levels.append(jnp.full(best.shape, level))
    boxes, logits, levels = (jnp.concatenate(parts, 1) for parts in (boxes, logits, levels))
    has_area = (boxes[..., 2:] > boxes[..., :2]).all(-1)
    logits = jnp.where(has_area, logits, -jnp.inf)
    kept, valid = nms(boxes, logits, settings.iou_threshold, max_outputs=settings.count, classes=levels)
    return Boxes(take(boxes, kept), valid), jax.nn.sigmoid(take(logits, kept)) * valid


def take(values: jax.Array, indices: jax.Array) -> jax.Array:
    """The values [batch, n, ...] at indices [batch, k] of each image."""
    return jax.vmap(lambda values, indices: values[indices])(values, indices)
