"""The backbones of LW-DETR and RF-DETR: a vision transformer, most of whose layers attend within windows.

RF-DETR's is DINOv2 (Oquab et al., arXiv:2304.07193).
"""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

import jax_dcn
from examples.library.layers import Conv

from .attention import SelfAttention
from .layers import FeedForward, LayerOptions

NORMAL = nn.initializers.truncated_normal(0.02)


@dataclass(frozen=True)
class Layout:
    """The sizes and the form of a backbone, most of them by the names of transformers.

    is_dinov2: whether it is DINOv2, which has a class token in each window and normalises its results, or the ViT of
    LW-DETR, whose keys have no bias. grid: how many learned positions a row and a column have. windows: how many
    windows a row and a column have. windowed: which layers attend within windows. out_indices: after how many layers
    features are returned. layer_scale: the first factor of what a layer adds.
    """

    is_dinov2: bool = False
    hidden_size: int = 192
    num_hidden_layers: int = 10
    num_attention_heads: int = 12
    mlp_ratio: int = 4
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-6
    patch_size: int = 16
    grid: int = 14
    windows: int = 4
    windowed: tuple[int, ...] = (0, 1, 3, 6, 7, 9)
    out_indices: tuple[int, ...] = (2, 4, 5, 9)
    layer_scale: float = 0.1

    @property
    def stride(self) -> int:
        """By which the sides of images must be divisible."""
        return self.patch_size * self.windows


def resized(grid: jax.Array, size: tuple[int, int], antialias: bool) -> jax.Array:
    """A grid [rows, columns, channels] of another size by PyTorch's bicubic interpolation, whose kernel depends on
    whether there is antialiasing."""
    if antialias:
        return jax.image.resize(grid, (*size, grid.shape[-1]), "cubic")
    return jax_dcn.resize(grid, size, method="bicubic")


class Embeddings(nn.Module):
    """Images to patches [batch, height, width, channels] with their positions, and the class token or None."""

    layout: Layout
    options: LayerOptions

    @nn.compact
    def __call__(self, images: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        layout, features, patch = self.layout, self.layout.hidden_size, (self.layout.patch_size,) * 2
        x = Conv(features, patch, strides=patch, padding=0, dtype=self.options.dtype, name="projection")(images)
        positions = self.param("position_embeddings", NORMAL, (1, layout.grid**2 + 1, features))
        grid = positions[0, 1:].reshape(layout.grid, layout.grid, features)
        if grid.shape != x.shape[1:]:
            grid = resized(grid, x.shape[1:3], layout.is_dinov2)
        x = x + grid.astype(x.dtype)
        if not layout.is_dinov2:
            return x, None
        self.param("mask_token", nn.initializers.zeros, (1, features))  # files have it; only pretraining uses it
        token = self.param("cls_token", nn.initializers.normal(1.0), (1, 1, features)) + positions[:, :1]
        return x, token.astype(x.dtype)


class Layer(nn.Module):
    """Attention among the tokens of a window or of all windows, and a feed-forward network, for x [batch, windows,
    tokens, channels]."""

    layout: Layout
    options: LayerOptions
    windowed: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        layout, options = self.layout, self.options

        def scaled(y, name):
            factor = self.param(name, nn.initializers.constant(layout.layer_scale), y.shape[-1:])
            return y * factor.astype(y.dtype)

        y = options.norm("norm1")(x)
        y = y if self.windowed else y.reshape(y.shape[0], 1, -1, y.shape[-1])
        attention = SelfAttention(layout.num_attention_heads, options, layout.is_dinov2, name="attention")
        x = x + scaled(attention(y).reshape(x.shape), "gamma_1")
        ffn = FeedForward(layout.hidden_size * layout.mlp_ratio, layout.hidden_act, options, name="mlp")
        return x + scaled(ffn(options.norm("norm2")(x)), "gamma_2")


class ViT(nn.Module):
    """Images [batch, height, width, 3], sides divisible by the layout's `stride`, to maps [batch, rows, columns,
    channels] of patches. Layers after the last map do not run."""

    layout: Layout
    options: LayerOptions

    @nn.compact
    def __call__(self, images: jax.Array) -> list[jax.Array]:
        layout, options, maps = self.layout, self.options, []
        x, token = Embeddings(layout, options, name="embeddings")(images)
        batch, rows, columns, features = x.shape
        windows = (layout.windows, rows // layout.windows, layout.windows, columns // layout.windows)
        x = x.reshape(batch, *windows, features).swapaxes(2, 3).reshape(batch, layout.windows**2, -1, features)
        if token is not None:
            x = jnp.concatenate([jnp.broadcast_to(token, (*x.shape[:2], 1, features)), x], 2)
        norm = options.norm("layernorm") if layout.is_dinov2 else lambda x: x
        for index in range(layout.num_hidden_layers):
            if index >= max(layout.out_indices) and not self.is_initializing():
                break
            x = Layer(layout, options, index in layout.windowed, name=f"layer_{index}")(x)
            if index + 1 in layout.out_indices:
                patches = norm(x[:, :, token is not None :]).reshape(batch, *windows[::2], *windows[1::2], features)
                maps.append(patches.swapaxes(2, 3).reshape(batch, rows, columns, features))
        return maps
