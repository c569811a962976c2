"""The feature pyramid (Lin et al., arXiv 1612.03144) and the heads that find classes, boxes and masks in regions."""

from collections.abc import Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype

from examples.library.boxes import Boxes
from examples.library.layers import Dense, Doubled, from_windows, relu, square
from jax_dcn import fpn_levels, roi_align

from .config import Config
from .rpn import STRIDES


class ConvModule(nn.Module):
    """A convolution inside a module of its own, as mmcv names it."""

    features: int
    size: int
    dtype: Dtype | None = None

    def setup(self):
        self.conv = square(self.features, self.size, dtype=self.dtype)

    def __call__(self, x):
        return self.conv(x)


class FPN(nn.Module):
    """Features of stride 4, 8, 16 and 32, each half as large as the one before, to features of stride 4 to 64."""

    features: int
    dtype: Dtype | None = None

    def setup(self):
        self.lateral_convs = [ConvModule(self.features, 1, self.dtype) for _ in range(4)]
        self.fpn_convs = [ConvModule(self.features, 3, self.dtype) for _ in range(4)]

    def __call__(self, features: Sequence[jax.Array]) -> list[jax.Array]:
        merged = [conv(feature) for conv, feature in zip(self.lateral_convs, features, strict=True)]
        for level in reversed(range(3)):
            merged[level] += merged[level + 1].repeat(2, 1).repeat(2, 2)
        pyramid = [conv(feature) for conv, feature in zip(self.fpn_convs, merged, strict=True)]
        return [*pyramid, pyramid[-1][:, ::2, ::2]]


POOLED_LEVELS = 4  # the coarsest features only propose
BOX_BINS, MASK_BINS = 7, 14
MASK_CONVS = 4


def pool(features: Sequence[jax.Array], regions: Boxes, bins: int, sampling_ratio: int = 0) -> jax.Array:
    """RoIAlign from the level that suits each region's size: [batch, n, bins, bins, features]; zeros for padding."""
    levels = fpn_levels(
        regions.boxes,
        num_levels=POOLED_LEVELS,
        min_level=0,
        canonical_level=0,
        canonical_size=56,
        ratio_eps=1e-6,
        level_eps=0,
    )
    pooled = 0
    for level, (feature, stride) in enumerate(zip(features[:POOLED_LEVELS], STRIDES, strict=False)):
        index = jnp.where(regions.valid & (levels == level), 0, -1)[..., None].astype(regions.boxes.dtype)
        rois = jnp.concatenate([index, regions.boxes], -1)
        align = partial(roi_align, output_size=bins, spatial_scale=1 / stride, sampling_ratio=sampling_ratio)
        # Each image on its own: devices that share a batch keep their images.
        pooled += jax.vmap(align)(feature[:, None], rois)
    return pooled


class BoxHead(nn.Module):
    """Pooled features to logits [..., classes + 1], the last of no object, and deltas [..., classes, 4], of float32."""

    classes: int
    hidden: int
    dtype: Dtype | None = None

    def setup(self):
        dense = partial(Dense, dtype=self.dtype)
        self.shared_fcs = [dense(self.hidden) for _ in range(2)]
        self.fc_cls = dense(self.classes + 1, kernel_init=nn.initializers.normal(0.01))
        self.fc_reg = dense(4 * self.classes, kernel_init=nn.initializers.normal(0.001))

    def __call__(self, pooled: jax.Array) -> tuple[jax.Array, jax.Array]:
        # The weights expect the order of mmdet: feature, row, column.
        x = jnp.moveaxis(pooled, -1, -3).reshape(*pooled.shape[:-3], -1)
        for layer in self.shared_fcs:
            x = relu(layer(x))
        logits, deltas = (layer(x).astype(jnp.float32) for layer in (self.fc_cls, self.fc_reg))
        return logits, deltas.reshape(*x.shape[:-1], self.classes, 4)


class LogitOfClass(nn.Module):
    """The result in float32 of a 1x1 convolution to logits of classes, at each item's class only.

    x [n, ..., features] and labels [n] give [n, ...]. The logits of all classes would be most of a detector's memory.
    """

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array, labels: jax.Array) -> jax.Array:
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (1, 1, x.shape[-1], self.classes))
        bias = self.param("bias", nn.initializers.zeros, (self.classes,))
        # A product with these rows, unlike a choice of items, has a gradient that is a product, too.
        is_class = jax.nn.one_hot(labels, self.classes, dtype=kernel.dtype)
        of_items = jnp.matmul(is_class, kernel[0, 0].T, precision=jax.lax.Precision.HIGHEST).astype(x.dtype)
        of_biases = jnp.matmul(is_class, bias, precision=jax.lax.Precision.HIGHEST)
        wide = jnp.promote_types(x.dtype, jnp.float32)
        logits = jnp.einsum("n...i,ni->n...", x, of_items, preferred_element_type=wide)
        return logits + of_biases.reshape(-1, *[1] * (logits.ndim - 1))


class MaskHead(nn.Module):
    """Pooled features [n, bins, bins, features] to mask logits [n, 2 · bins, 2 · bins] of the labels [n]."""

    classes: int
    features: int
    dtype: Dtype | None = None

    def setup(self):
        self.convs = [ConvModule(self.features, 3, self.dtype) for _ in range(MASK_CONVS)]
        self.upsample = Doubled(self.features, self.dtype)
        self.conv_logits = LogitOfClass(self.classes)

    def __call__(self, pooled: jax.Array, labels: jax.Array) -> jax.Array:
        for conv in self.convs:
            pooled = relu(conv(pooled))
        return from_windows(self.conv_logits(relu(self.upsample(pooled)), labels))


class RoIHead(nn.Module):
    """Both heads, each of which pools its own features."""

    config: Config
    dtype: Dtype | None = None

    def setup(self):
        config = self.config
        self.bbox_head = BoxHead(config.classes, config.hidden, self.dtype)
        if config.masks:
            self.mask_head = MaskHead(config.classes, config.channels, self.dtype)

    def classify(self, features: Sequence[jax.Array], regions: Boxes) -> tuple[jax.Array, jax.Array]:
        """Logits [batch, n, classes + 1] and deltas [batch, n, classes, 4] of regions."""
        return self.bbox_head(pool(features, regions, BOX_BINS, self.config.sampling_ratio))

    def segment(self, features: Sequence[jax.Array], regions: Boxes, labels: jax.Array) -> jax.Array:
        """The mask logits [batch, n, 28, 28] of the class of each region, given by labels [batch, n]."""
        pooled = pool(features, regions, MASK_BINS, self.config.sampling_ratio)
        logits = self.mask_head(pooled.reshape(-1, *pooled.shape[2:]), labels.ravel())
        return logits.reshape(*labels.shape, *logits.shape[1:])
