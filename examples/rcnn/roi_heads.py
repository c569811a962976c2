"""The heads that classify regions, refine their boxes and predict the masks of objects."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.library.boxes import Boxes
from jax_dcn import fpn_levels, roi_align

from .anchors import STRIDES
from .fpn import ConvModule

POOLED_LEVELS = 4  # the coarsest features only propose
BOX_BINS, MASK_BINS = 7, 14
MASK_CONVS = 4


def pool(features: Sequence[jax.Array], regions: Boxes, bins: int) -> jax.Array:
    """RoIAlign from the level that suits each region's size: [batch, n, bins, bins, features]; zeros for padding."""
    batch, count = regions.valid.shape
    levels = fpn_levels(
        regions.boxes,
        num_levels=POOLED_LEVELS,
        min_level=0,
        canonical_level=0,
        canonical_size=56,
        ratio_eps=1e-6,
        level_eps=0,
    )
    image = jnp.arange(batch)[:, None]
    pooled = 0
    for level, (feature, stride) in enumerate(zip(features[:POOLED_LEVELS], STRIDES, strict=False)):
        index = jnp.where(regions.valid & (levels == level), image, -1)[..., None].astype(regions.boxes.dtype)
        rois = jnp.concatenate([index, regions.boxes], -1).reshape(-1, 5)
        pooled += roi_align(feature, rois, output_size=bins, spatial_scale=1 / stride)
    return pooled.reshape(batch, count, bins, bins, -1)


class BoxHead(nn.Module):
    """Pooled features to logits [..., classes + 1], the last of no object, and deltas [..., classes, 4]."""

    classes: int
    hidden: int

    def setup(self):
        self.shared_fcs = [nn.Dense(self.hidden) for _ in range(2)]
        self.fc_cls = nn.Dense(self.classes + 1, kernel_init=nn.initializers.normal(0.01))
        self.fc_reg = nn.Dense(4 * self.classes, kernel_init=nn.initializers.normal(0.001))

    def __call__(self, pooled: jax.Array) -> tuple[jax.Array, jax.Array]:
        # The weights expect the order of mmdet: feature, row, column.
        x = jnp.moveaxis(pooled, -1, -3).reshape(*pooled.shape[:-3], -1)
        for layer in self.shared_fcs:
            x = nn.relu(layer(x))
        return self.fc_cls(x), self.fc_reg(x).reshape(*x.shape[:-1], self.classes, 4)


class Upsample(nn.Module):
    """A 2x2 transposed convolution of stride 2. Its windows do not overlap, so it is a matrix product.

    XLA computes it so much faster on a CPU. The layout of the weight is that of a convolution in the other direction.
    """

    features: int

    @nn.compact
    def __call__(self, x):
        kernel = self.param(
            "kernel", nn.initializers.he_normal(in_axis=-1, out_axis=-2), (2, 2, self.features, x.shape[-1])
        )
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        batch, height, width, _ = x.shape
        y = jnp.einsum("bhwi,yxoi->bhywxo", x, kernel) + bias
        return y.reshape(batch, 2 * height, 2 * width, self.features)


class MaskHead(nn.Module):
    """Pooled features [n, bins, bins, features] to mask logits [n, 2 · bins, 2 · bins, classes]."""

    classes: int
    features: int

    def setup(self):
        self.convs = [ConvModule(self.features, 3) for _ in range(MASK_CONVS)]
        self.upsample = Upsample(self.features)
        self.conv_logits = nn.Conv(self.classes, (1, 1))

    def __call__(self, pooled: jax.Array) -> jax.Array:
        for conv in self.convs:
            pooled = nn.relu(conv(pooled))
        return self.conv_logits(nn.relu(self.upsample(pooled)))


class RoIHead(nn.Module):
    """Both heads, each of which pools its own features."""

    classes: int
    features: int
    hidden: int
    masks: bool

    def setup(self):
        self.bbox_head = BoxHead(self.classes, self.hidden)
        if self.masks:
            self.mask_head = MaskHead(self.classes, self.features)

    def classify(self, features: Sequence[jax.Array], regions: Boxes) -> tuple[jax.Array, jax.Array]:
        """Logits [batch, n, classes + 1] and deltas [batch, n, classes, 4] of regions."""
        return self.bbox_head(pool(features, regions, BOX_BINS))

    def segment(self, features: Sequence[jax.Array], regions: Boxes, labels: jax.Array) -> jax.Array:
        """The mask logits [batch, n, 28, 28] of the class of each region, given by labels [batch, n]."""
        pooled = pool(features, regions, MASK_BINS)
        logits = self.mask_head(pooled.reshape(-1, *pooled.shape[2:]))
        chosen = jnp.take_along_axis(logits, labels.reshape(-1, 1, 1, 1), -1)
        return chosen.reshape(*labels.shape, *chosen.shape[1:3])
