"""The feature pyramid (Lin et al., arXiv 1612.03144), with the names of mmdet."""

from collections.abc import Sequence

import flax.linen as nn
import jax
from flax.typing import Dtype

from examples.library.convolution import square


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
