"""ResNet, and ResNet-vd with a stem of three convolutions, both with frozen batch normalisation.

He et al., Deep Residual Learning, arXiv:1512.03385; He et al., Bag of Tricks, arXiv:1812.01187, for ResNet-vd.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from .config import ResNetConfig

REDUCTION = 4  # of channels in the middle of a bottleneck


class FrozenBatchNorm(nn.Module):
    """A batch normalisation whose statistics and parameters are all constants: none of them is in "params"."""

    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale, bias, mean, var = (self._constant(name, x.shape[-1]) for name in ("scale", "bias", "mean", "var"))
        factor = scale * jax.lax.rsqrt(var + self.epsilon)
        return x * factor + (bias - mean * factor)

    def _constant(self, name, channels):
        init = jnp.ones if name in ("scale", "var") else jnp.zeros
        return self.variable("batch_stats", name, init, (channels,)).value


class ConvFrozenNorm(nn.Module):
    """A convolution without bias, and its normalisation."""

    features: int
    size: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv = nn.Conv(
            self.features,
            (self.size, self.size),
            strides=self.stride,
            padding=self.size // 2,
            use_bias=False,
            name="convolution",
        )
        return FrozenBatchNorm(name="normalization")(conv(x))


class Block(nn.Module):
    """A residual block, with two 3x3 convolutions ("basic") or 1x1, 3x3 and 1x1 ("bottleneck")."""

    features: int
    stride: int
    project: bool
    config: ResNetConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = x
        convs = self._convs()
        for index, (features, size, stride) in enumerate(convs):
            y = ConvFrozenNorm(features, size, stride, name=f"layer_{index}")(y)
            y = nn.relu(y) if index < len(convs) - 1 else y
        return nn.relu(y + (self._shortcut(x) if self.project else x))

    def _convs(self):
        if self.config.layer_type == "basic":
            return [(self.features, 3, self.stride), (self.features, 3, 1)]
        narrow = self.features // REDUCTION
        strides = (self.stride, 1) if self.config.downsample_in_bottleneck else (1, self.stride)
        return [(narrow, 1, strides[0]), (narrow, 3, strides[1]), (self.features, 1, 1)]

    def _shortcut(self, x):
        stride = self.stride
        if self.config.deep and stride == 2:
            x, stride = nn.avg_pool(x, (2, 2), strides=(2, 2)), 1
        return ConvFrozenNorm(self.features, 1, stride, name="shortcut")(x)


class ResNet(nn.Module):
    """Images [batch, height, width, 3] to the features of the stages that the config names."""

    config: ResNetConfig

    @nn.compact
    def __call__(self, images: jax.Array) -> list[jax.Array]:
        width = self.config.embedding_size
        stem = [(width // 2, 3, 2), (width // 2, 3, 1), (width, 3, 1)] if self.config.deep else [(width, 7, 2)]
        x = images
        for index, (features, size, stride) in enumerate(stem):
            x = nn.relu(ConvFrozenNorm(features, size, stride, name=f"embedder_{index}")(x))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        outputs = []
        for stage, (features, depth) in enumerate(zip(self.config.hidden_sizes, self.config.depths, strict=True)):
            for index in range(depth):
                halve = index == 0 and stage > 0
                x = Block(
                    features,
                    stride=2 if halve else 1,
                    project=halve or x.shape[-1] != features or self._always_projects(index),
                    config=self.config,
                    name=f"stage{stage}_{index}",
                )(x)
            if stage + 1 in self.config.out_indices:
                outputs.append(x)
        return outputs

    def _always_projects(self, index):
        return index == 0 and self.config.deep and self.config.layer_type == "basic"
