"""PP-HGNetV2 of PaddleClas: a network of blocks that concatenate the results of all their layers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype

from examples.library.layers import BatchNorm, FrozenBatchNorm, max_pool, relu, square


@dataclass(frozen=True)
class Layout:
    """The sizes of an HGNetv2, by the names of transformers; all of `stage_` are per stage.

    stage_light_block: whether layers are a 1x1 and a depthwise convolution. use_learnable_affine_block: whether layers
    end with a learned scale and bias. out_indices: the stages whose features are returned, from 1 to 4.
    """

    stem_channels: tuple[int, int, int] = (3, 32, 48)
    stem_strides: tuple[int, ...] = (2, 1, 1, 2, 1)
    stage_mid_channels: tuple[int, ...] = (48, 96, 192, 384)
    stage_out_channels: tuple[int, ...] = (128, 512, 1024, 2048)
    stage_num_blocks: tuple[int, ...] = (1, 1, 3, 1)
    stage_downsample: tuple[bool, ...] = (False, True, True, True)
    stage_downsample_strides: tuple[int, ...] = (2, 2, 2, 2)
    stage_light_block: tuple[bool, ...] = (False, False, True, True)
    stage_kernel_size: tuple[int, ...] = (3, 3, 5, 5)
    stage_numb_of_layers: tuple[int, ...] = (6, 6, 6, 6)
    use_learnable_affine_block: bool = False
    out_indices: tuple[int, ...] = (2, 3, 4)


@dataclass(frozen=True)
class Options:
    """What all layers share: whether they have an affine block, how batch normalisations are made, and the dtype of
    convolutions."""

    affine: bool
    norm: Callable[..., nn.Module]
    dtype: Dtype | None


class ConvLayer(nn.Module):
    """A convolution, its normalisation and, if it is active, ReLU and an affine block."""

    features: int
    size: int
    options: Options
    stride: int = 1
    groups: int = 1
    is_active: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        options = self.options
        form = {"feature_group_count": self.groups, "use_bias": False, "dtype": options.dtype}
        x = square(self.features, self.size, self.stride, **form, name="convolution")(x)
        x = options.norm(name="normalization")(x)
        if not self.is_active:
            return x
        return Affine(name="lab")(relu(x)) if options.affine else relu(x)


class Affine(nn.Module):
    """One learned factor and one learned summand for all channels."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        factor = self.param("factor", nn.initializers.ones, (1,))
        bias = self.param("bias", nn.initializers.zeros, (1,))
        return x * factor.astype(x.dtype) + bias.astype(x.dtype)


class LightLayer(nn.Module):
    """A 1x1 convolution and a depthwise one."""

    features: int
    size: int
    options: Options

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = ConvLayer(self.features, 1, self.options, is_active=False, name="conv1")(x)
        return ConvLayer(self.features, self.size, self.options, groups=self.features, name="conv2")(x)


class Stem(nn.Module):
    """Images to features of a quarter of the size."""

    layout: Layout
    options: Options

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        _, middle, last = self.layout.stem_channels
        sizes = {"stem1": (middle, 3), "stem2a": (middle // 2, 2), "stem2b": (middle, 2), "stem3": (middle, 3)}
        sizes |= {"stem4": (last, 1)}
        strides = dict(zip(sizes, self.layout.stem_strides, strict=True))

        def layer(name, x):
            return ConvLayer(*sizes[name], self.options, strides[name], name=name)(x)

        x = _padded(layer("stem1", images))
        convolved = layer("stem2b", _padded(layer("stem2a", x)))
        pooled = max_pool(x, (2, 2), (1, 1))
        return layer("stem4", layer("stem3", jnp.concatenate([pooled, convolved], -1)))


class Block(nn.Module):
    """Layers one after another, whose results two 1x1 convolutions combine."""

    layout: Layout
    stage: int
    is_residual: bool
    options: Options

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        layout, stage, y = self.layout, self.stage, x
        kind = LightLayer if layout.stage_light_block[stage] else ConvLayer
        sizes = layout.stage_mid_channels[stage], layout.stage_kernel_size[stage]
        found = [x]
        for index in range(layout.stage_numb_of_layers[stage]):
            y = kind(*sizes, self.options, name=f"layers_{index}")(y)
            found.append(y)
        features = layout.stage_out_channels[stage]
        y = ConvLayer(features // 2, 1, self.options, name="aggregation_0")(jnp.concatenate(found, -1))
        y = ConvLayer(features, 1, self.options, name="aggregation_1")(y)
        return y + x if self.is_residual else y


class Stage(nn.Module):
    """A depthwise convolution that may halve the size, and blocks."""

    layout: Layout
    stage: int
    options: Options

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        layout, stage, channels = self.layout, self.stage, x.shape[-1]
        if layout.stage_downsample[stage]:
            stride = layout.stage_downsample_strides[stage]
            x = ConvLayer(channels, 3, self.options, stride, channels, is_active=False, name="downsample")(x)
        for index in range(layout.stage_num_blocks[stage]):
            x = Block(layout, stage, index > 0, self.options, name=f"blocks_{index}")(x)
        return x


class Stages(nn.Module):
    """All stages."""

    layout: Layout
    options: Options

    @nn.compact
    def __call__(self, x: jax.Array) -> list[jax.Array]:
        found = []
        for stage in range(len(self.layout.stage_out_channels)):
            x = Stage(self.layout, stage, self.options, name=f"stages_{stage}")(x)
            found.append(x)
        return [found[index - 1] for index in self.layout.out_indices]


class HGNet(nn.Module):
    """Images [batch, height, width, 3], normalised as for the checkpoint, to the features of stages.

    frozen: the statistics and parameters of batch normalisations are constants.
    """

    layout: Layout = Layout()
    frozen: bool = False
    dtype: Dtype | None = None

    @nn.compact
    def __call__(self, images: jax.Array, *, use_running_average: bool = True) -> list[jax.Array]:
        norm = partial(BatchNorm, use_running_average, dtype=self.dtype)
        norm = FrozenBatchNorm if self.frozen else norm
        options = Options(self.layout.use_learnable_affine_block, norm, self.dtype)
        x = Stem(self.layout, options, name="embedder")(jnp.asarray(images))
        return Stages(self.layout, options, name="encoder")(x)


def _padded(x):
    """One more row and column of zeros."""
    return jnp.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))
