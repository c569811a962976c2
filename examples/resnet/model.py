"""ResNets with deformable convolutions, with the names and the results of mmdet's, torchvision's and transformers'.

He et al., Deep Residual Learning, arXiv:1512.03385; He et al., Bag of Tricks, arXiv:1812.01187, for ResNet-vd;
Dai et al., arXiv:1703.06211, and Zhu et al., arXiv:1811.11168, for which convolutions are deformable.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype

from examples.library.layers import BatchNorm, Conv, FrozenBatchNorm, max_pool, relu
from jax_dcn.linen import DeformConv

# The normalisation of images in RGB, of ImageNet's, that mmdet's models of this form are trained with.
MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)

STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
PLAIN = (False,) * 4  # no stage has deformable convolutions
# How the names of the parameters in the stem and in the first stage of a model's backbone begin.
FIRST_PARAMETERS = ("backbone/conv", "backbone/bn", "backbone/layer1_")
EXPANSION = 4  # of the channels in the middle of a bottleneck


@dataclass(frozen=True)
class Layout:
    """The sizes and the form of a ResNet, by the names of transformers.

    layer_type: "bottleneck", blocks of 1x1, 3x3 and 1x1 convolutions, or "basic", of two 3x3 convolutions.
    deep: ResNet-vd, whose stem is three 3x3 convolutions and whose strided shortcuts take means. As in transformers,
    those of basic blocks do so only if they change the number of channels.
    downsample_in_bottleneck: the first 1x1 convolution of a block has its stride, and not the 3x3 convolution.
    out_indices: the stages whose features are returned, from 1 to 4.
    """

    deep: bool = False
    embedding_size: int = 64
    hidden_sizes: tuple[int, ...] = (256, 512, 1024, 2048)
    depths: tuple[int, ...] = STAGES[50]
    layer_type: str = "bottleneck"
    downsample_in_bottleneck: bool = False
    out_indices: tuple[int, ...] = (1, 2, 3, 4)

    def takes_means(self, before: int, after: int) -> bool:
        """Whether a strided shortcut between these numbers of channels takes means."""
        return self.deep and (self.layer_type == "bottleneck" or before != after)


class Block(nn.Module):
    """A residual block. conv, conv3x3 and norm make its layers; conv3x3 may be deformable."""

    features: int
    stride: int
    project: bool
    layout: Layout
    conv: Callable[..., nn.Module]
    conv3x3: Callable[..., nn.Module]
    norm: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = x
        sizes = self._sizes()
        for index, (features, size, stride) in enumerate(sizes, 1):
            layer = self.conv3x3 if size == 3 else self.conv
            y = layer(features, (size, size), strides=stride, padding=size // 2, name=f"conv{index}")(y)
            y = self.norm(name=f"bn{index}")(y)
            y = relu(y) if index < len(sizes) else y
        return relu(y + (self._shortcut(x) if self.project else x))

    def _sizes(self):
        """The features, size and stride of each convolution."""
        if self.layout.layer_type == "basic":
            return [(self.features, 3, self.stride), (self.features, 3, 1)]
        narrow = self.features // EXPANSION
        strides = (self.stride, 1) if self.layout.downsample_in_bottleneck else (1, self.stride)
        return [(narrow, 1, strides[0]), (narrow, 3, strides[1]), (self.features, 1, 1)]

    def _shortcut(self, x):
        stride = self.stride
        if stride == 2 and self.layout.takes_means(x.shape[-1], self.features):
            x = nn.avg_pool(x, (2, 2), strides=(2, 2), padding="SAME", count_include_pad=False)
            stride = 1
        return self.norm(name="downsample_1")(self.conv(self.features, (1, 1), strides=stride, name="downsample_0")(x))


class ResNet(nn.Module):
    """Images [..., height, width, 3], normalised as for the checkpoint, to the features of stages.

    layout: 50, 101 or 152, whose stages have features of stride 4, 8, 16 and 32; or another `Layout`.
    stage_with_dcn: for each stage, whether its 3x3 convolutions are deformable; all False is the plain network.
    modulated: with masks (mmdet's DCNv2) or without (DCN).
    offset_groups: mmdet's deform_groups.
    frozen: the parameters of batch normalisations are constants, too.
    """

    layout: int | Layout = 50
    stage_with_dcn: tuple[bool, bool, bool, bool] = (False, True, True, True)
    modulated: bool = True
    offset_groups: int = 1
    frozen: bool = False
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, images: jax.Array, *, use_running_average: bool = True) -> list[jax.Array]:
        layout = self.layout if isinstance(self.layout, Layout) else Layout(depths=STAGES[self.layout])
        conv = partial(Conv, use_bias=False, dtype=self.dtype)
        groups = {"modulated": self.modulated, "offset_groups": self.offset_groups}
        deformable = partial(DeformConv, use_bias=False, dtype=self.dtype, **groups)
        norm = partial(BatchNorm, use_running_average, dtype=self.dtype)
        norm = FrozenBatchNorm if self.frozen else norm
        width = layout.embedding_size
        stem = [(width // 2, 3, 2), (width // 2, 3, 1), (width, 3, 1)] if layout.deep else [(width, 7, 2)]
        x = jnp.asarray(images)
        for index, (features, size, stride) in enumerate(stem, 1):
            x = conv(features, (size, size), strides=stride, padding=size // 2, name=f"conv{index}")(x)
            x = relu(norm(name=f"bn{index}")(x))
        x = max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        outputs = []
        stages = zip(layout.hidden_sizes, layout.depths, self.stage_with_dcn, strict=True)
        for stage, (features, depth, with_dcn) in enumerate(stages, 1):
            for index in range(depth):
                halve = index == 0 and stage > 1
                always = index == 0 and layout.deep and layout.layer_type == "basic"
                project = halve or always or x.shape[-1] != features
                layers = conv, deformable if with_dcn else conv, norm
                x = Block(features, 1 + halve, project, layout, *layers, name=f"layer{stage}_{index}")(x)
            if stage in layout.out_indices:
                outputs.append(x)
        return outputs
