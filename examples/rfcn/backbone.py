"""A ResNet-like backbone of total stride 8, whose last stage may have deformable convolutions.

All downsampling is symmetric (an even kernel with stride 2). The receptive field of cell (i, j) of the feature map is
therefore centred exactly at (8 i + 4, 8 j + 4), which is what `locations` returns.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.library.layers import Conv, relu
from jax_dcn.linen import DeformConv

STRIDE = 8


def locations(height: int, width: int) -> jax.Array:
    """Centres (x, y) in pixels of the feature map's cells for an image of the given size: float32 [cells, 2].

    >>> locations(8, 16).tolist()
    [[4.0, 4.0], [12.0, 4.0]]
    """
    y, x = jnp.meshgrid(*(jnp.arange(extent // STRIDE) for extent in (height, width)), indexing="ij")
    return (jnp.stack([x, y], -1).reshape(-1, 2) + 0.5) * STRIDE


def norm(name: str) -> nn.GroupNorm:
    """The normalisation between layers."""
    return nn.GroupNorm(num_groups=8, name=name)


class Conv3x3(nn.Module):
    """A 3x3 convolution."""

    features: int
    is_deformable: bool = False

    @nn.compact
    def __call__(self, x):
        if not self.is_deformable:
            return Conv(self.features, (3, 3), use_bias=False, name="conv")(x)
        # Training starts with zero offsets and masks of 1, where it equals the plain convolution.
        return DeformConv(self.features, (3, 3), use_bias=False, mask_scale=2.0, name="conv")(x)


class Block(nn.Module):
    """A residual block of two 3x3 convolutions; with `halve`, the first one is 4x4 with stride 2."""

    features: int
    halve: bool = False
    is_deformable: bool = False

    @nn.compact
    def __call__(self, x):
        shortcut = _mean_2x2(x) if self.halve else x
        if x.shape[-1] != self.features:
            shortcut = Conv(self.features, (1, 1), use_bias=False, name="project")(shortcut)
        y = _halving_conv(self.features, "conv1")(x) if self.halve else self._conv("conv1")(x)
        y = self._conv("conv2")(relu(norm("norm1")(y)))
        return relu(shortcut + norm("norm2")(y))

    def _conv(self, name):
        return Conv3x3(self.features, self.is_deformable, name=name)


class Backbone(nn.Module):
    """uint8 images [batch, height, width, 3], sides divisible by 8, to features [batch, height/8, width/8, widths[-1]].

    is_deformable: whether the last stage is. widths: channels of the stem and of the stages of stride 4, 8 and 8;
    blocks: residual blocks in each stage.
    """

    is_deformable: bool = True
    widths: tuple[int, int, int, int] = (24, 32, 64, 64)
    blocks: tuple[int, int, int] = (1, 2, 3)

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = images.astype(jnp.float32) / 127.5 - 1
        x = relu(norm("stem_norm")(_halving_conv(self.widths[0], "stem")(x)))
        stages = zip(self.widths[1:], self.blocks, (True, True, False), strict=True)
        for stage, (features, blocks, halve) in enumerate(stages, start=1):
            for block in range(blocks):
                name = f"stage{stage}_block{block}"
                x = Block(features, halve and block == 0, self.is_deformable and stage == 3, name=name)(x)
        return x


def _halving_conv(features, name):
    return Conv(features, (4, 4), strides=2, padding=1, use_bias=False, name=name)


def _mean_2x2(x):
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).mean((2, 4))
