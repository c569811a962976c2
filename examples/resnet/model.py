"""ResNet-50, -101 and -152 with deformable convolutions, with the names and the results of mmdet's.

He et al., Deep Residual Learning, arXiv:1512.03385, in the form where the 3x3 convolution of a block has its stride;
Dai et al., arXiv:1703.06211, and Zhu et al., arXiv:1811.11168, for which convolutions are deformable.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype

from jax_dcn.linen import DeformConv

STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
EXPANSION = 4


class Bottleneck(nn.Module):
    """A residual block of 1x1, 3x3 and 1x1 convolutions, of which the 3x3 one is plain or deformable."""

    features: int
    stride: int
    project: bool
    deformable: bool
    modulated: bool
    offset_groups: int
    dtype: Dtype | None

    def setup(self):
        self.conv1 = _conv(self.features, 1, dtype=self.dtype)
        if self.deformable:
            self.conv2 = DeformConv(
                self.features,
                (3, 3),
                strides=self.stride,
                padding=1,
                use_bias=False,
                modulated=self.modulated,
                offset_groups=self.offset_groups,
                dtype=self.dtype,
            )
        else:
            self.conv2 = _conv(self.features, 3, self.stride, self.dtype)
        self.conv3 = _conv(self.features * EXPANSION, 1, dtype=self.dtype)
        self.bn1, self.bn2, self.bn3 = (nn.BatchNorm(momentum=0.9, dtype=self.dtype) for _ in range(3))
        if self.project:
            projection = _conv(self.features * EXPANSION, 1, self.stride, self.dtype)
            self.downsample = [projection, nn.BatchNorm(momentum=0.9, dtype=self.dtype)]

    def __call__(self, x, *, use_running_average):
        shortcut = x
        if self.project:
            conv, norm = self.downsample
            shortcut = norm(conv(x), use_running_average)
        x = nn.relu(self.bn1(self.conv1(x), use_running_average))
        x = nn.relu(self.bn2(self.conv2(x), use_running_average))
        return nn.relu(self.bn3(self.conv3(x), use_running_average) + shortcut)


class ResNet(nn.Module):
    """Images [..., height, width, 3], normalised as for the checkpoint, to features of stride 4, 8, 16 and 32.

    depth: 50, 101 or 152.
    stage_with_dcn: for each stage, whether its 3x3 convolutions are deformable; all False is the plain network.
    modulated: with masks (mmdet's DCNv2) or without (DCN).
    offset_groups: mmdet's deform_groups.
    """

    depth: int = 50
    stage_with_dcn: tuple[bool, bool, bool, bool] = (False, True, True, True)
    modulated: bool = True
    offset_groups: int = 1
    dtype: Dtype | None = None

    def setup(self):
        self.conv1 = _conv(64, 7, 2, self.dtype)
        self.bn1 = nn.BatchNorm(momentum=0.9, dtype=self.dtype)
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            [
                Bottleneck(
                    64 * 2**stage,
                    stride=2 if stage and not block else 1,
                    project=not block,
                    deformable=self.stage_with_dcn[stage],
                    modulated=self.modulated,
                    offset_groups=self.offset_groups,
                    dtype=self.dtype,
                )
                for block in range(blocks)
            ]
            for stage, blocks in enumerate(STAGES[self.depth])
        )

    def __call__(self, images: jax.Array, *, use_running_average: bool = True) -> list[jax.Array]:
        x = nn.relu(self.bn1(self.conv1(jnp.asarray(images)), use_running_average))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        features = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            for block in stage:
                x = block(x, use_running_average=use_running_average)
            features.append(x)
        return features


def _conv(features, size, stride=1, dtype=None):
    return nn.Conv(features, (size, size), strides=stride, padding=size // 2, use_bias=False, dtype=dtype)
