"""The sparse deformable descriptor head (SDDH): each keypoint decides where its descriptor samples the features."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from flax.typing import Dtype

from .keypoints import pixels_at, sample

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
