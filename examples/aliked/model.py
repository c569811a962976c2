"""ALIKED: a feature and a score for every pixel, the keypoints, and their descriptors.

Each keypoint decides where its descriptor samples the features, by the sparse deformable descriptor head (SDDH).

Zhao et al., ALIKED: A Lighter Keypoint and Descriptor Extraction Network via Deformable Transformation,
arXiv:2304.03608. Modules have the names of the published weights. Batch norms are constant, also in training.
"""

from dataclasses import dataclass
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from flax.typing import Dtype

import jax_dcn
from examples.library.layers import BatchNorm, Conv, square
from jax_dcn.linen import DeformConv

from .keypoints import Keypoints, find_keypoints, pixels_at, sample

PATCH = 3  # pixels, from which the offsets are predicted


class DescriptorHead(nn.Module):
    """Features [N, H, W, D] and positions [N, K, 2], (x, y) in pixels, to descriptors [N, K, D] of unit length.

    It also returns the offsets [N, K, samples, 2] of the samples from the positions, (x, y) in pixels.
    """

    samples: int
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, features: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        height, width, channels = features.shape[1:]
        # The authors clip the first pixel of a patch to one less than fits.
        last = jnp.array([height, width]) - PATCH - 1
        first = (jnp.floor(positions[..., ::-1]).astype(jnp.int32) - 1).clip(0, last)
        steps = jnp.stack(jnp.meshgrid(*[jnp.arange(PATCH)] * 2, indexing="ij"), -1)
        patches = pixels_at(features, first[:, :, None, None] + steps)
        outputs = 2 * self.samples
        raw = nn.Conv(outputs, (PATCH, PATCH), padding="VALID", dtype=self.dtype, name="offset_conv_0")(patches)
        raw = nn.Conv(outputs, (1, 1), dtype=self.dtype, name="offset_conv_2")(jax.nn.selu(raw))
        raw = raw.reshape(*positions.shape[:2], 2, self.samples).swapaxes(2, 3)  # all x come before all y
        limit = max(height, width) / 4
        offsets = raw.astype(positions.dtype).clip(-limit, limit)
        sampled = sample(features, positions[:, :, None] + offsets)
        sampled = nn.Conv(channels, (1, 1), use_bias=False, dtype=self.dtype, name="sf_conv")(sampled)
        init = nn.initializers.lecun_normal(in_axis=(0, 1), out_axis=2)
        weights = self.param("agg_weights", init, (self.samples, channels, channels))
        sampled, weights = promote_dtype(jax.nn.selu(sampled), weights, dtype=self.dtype)
        descriptors = jnp.einsum("nkpc,pcd->nkd", sampled, weights)
        return unit(descriptors.astype(positions.dtype)), offsets


def unit(x: jax.Array) -> jax.Array:
    """Vectors along the last axis, divided by their lengths."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    squared = jnp.square(wide).sum(-1, keepdims=True)
    return (wide * jax.lax.rsqrt(jnp.maximum(squared, 1e-24))).astype(x.dtype)


STRIDE = 32  # of the last block
POOLING = (1, 2, 4, 4)  # before each block
MAPS = 4  # of the score head


@dataclass(frozen=True)
class Layout:
    """The channels of the four blocks, and how often a descriptor samples; by default those of aliked-n16."""

    channels: tuple[int, int, int, int] = (16, 32, 64, 128)
    samples: int = 16


class Found(NamedTuple):
    """What the model finds in images [N, H, W, 3].

    points: their positions are (x, y) in pixels of the images. descriptors: [N, K, D], of unit length. offsets: [N, K,
    samples, 2], from the positions to what the descriptors sample. score_map: [N, H, W].
    """

    points: Keypoints
    descriptors: jax.Array
    offsets: jax.Array
    score_map: jax.Array


class Block(nn.Module):
    """Two 3x3 convolutions with batch norms, around which there may be a shortcut.

    Deformable ones keep their offsets as "intermediates".
    """

    features: int
    shortcut: bool = True
    deformable: bool = False
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = x
        for index in (1, 2):
            options = {"padding": 1, "use_bias": False, "dtype": self.dtype, "name": f"conv{index}"}
            if self.deformable:
                layer = DeformConv(self.features, (3, 3), modulated=False, offset_limit=quarter, **options)
                y, offset, _ = layer(y, return_offsets=True)
                self.sow("intermediates", f"offset{index}", offset)
            else:
                y = Conv(self.features, (3, 3), **options)(y)
            y = BatchNorm(use_running_average=True, dtype=self.dtype, name=f"bn{index}")(y)
            if index == 2 and self.shortcut:
                y += Conv(self.features, (1, 1), dtype=self.dtype, name="downsample")(x)
            y = jax.nn.selu(y)
        return y


def quarter(size: tuple[int, int]) -> float:
    """The limit of offsets in a map of this size."""
    return max(size) / 4


class Aliked(nn.Module):
    """Images [N, H, W, 3], RGB in [0, 1], to `Found`. dtype: of convolutions; positions have that of the images."""

    layout: Layout = Layout()
    dtype: Dtype | None = None

    def setup(self) -> None:
        channels = self.layout.channels
        for index, features in enumerate(channels, 1):
            block = Block(features, shortcut=index > 1, deformable=index > 2, dtype=self.dtype)
            setattr(self, f"block{index}", block)
            setattr(self, f"conv{index}", Conv(channels[-1] // 4, (1, 1), use_bias=False, dtype=self.dtype))
        sizes = {"0": (8, 1), "2": (MAPS, 3), "4": (MAPS, 3), "6": (1, 3)}
        self.score_head = {name: square(*size, use_bias=False, dtype=self.dtype) for name, size in sizes.items()}
        self.desc_head = DescriptorHead(self.layout.samples, self.dtype)

    def __call__(
        self, images: jax.Array, count: int, *, threshold: float | jax.Array = 0.0, mask: jax.Array | None = None
    ) -> Found:
        """The `count` best keypoints of each image; threshold and mask: as of `find_keypoints`."""
        features, score_map = self.maps(images)
        points = find_keypoints(score_map, count, threshold=threshold, mask=mask)
        return Found(points, *self.desc_head(features, points.positions), score_map)

    def maps(self, images: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The features [N, H, W, D], of unit length, and the scores [N, H, W], in (0, 1), of all pixels."""
        height, width = images.shape[1:3]
        margins = [(-side % STRIDE // 2, (-side % STRIDE + 1) // 2) for side in (height, width)]
        x = jnp.pad(images, ((0, 0), *margins, (0, 0)), mode="edge")
        size, levels = x.shape[1:3], []
        for index, factor in enumerate(POOLING, 1):
            x = getattr(self, f"block{index}")(mean_pool(x, factor))
            level = jax.nn.selu(getattr(self, f"conv{index}")(x))
            levels.append(level if index == 1 else jax_dcn.resize(level, size, align_corners=True))
        scores = features = jnp.concatenate(levels, -1)
        for name in ("0", "2", "4"):
            scores = jax.nn.selu(self.score_head[name](scores))
        scores = self.score_head["6"](scores)[..., 0].astype(images.dtype)
        (top, _), (left, _) = margins
        inside = (slice(None), slice(top, top + height), slice(left, left + width))
        return unit(features[inside]), jax.nn.sigmoid(scores[inside])

    def describe(self, features: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The descriptors of any positions in the features that `maps` returns, and their offsets; see `Found`."""
        return self.desc_head(features, positions)


def mean_pool(x: jax.Array, factor: int) -> jax.Array:
    """The means of squares of pixels."""
    count, height, width, channels = x.shape
    return x.reshape(count, height // factor, factor, width // factor, factor, channels).mean((2, 4))
