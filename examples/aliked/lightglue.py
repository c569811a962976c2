"""LightGlue, which matches the keypoints of two images by attention within and between the images.

Lindenberger et al., LightGlue: Local Feature Matching at Light Speed, arXiv:2306.13643. Modules have the names of the
published weights. All layers run for all keypoints: there is no early exit.
"""

from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype

from examples.library.layers import Dense

THRESHOLD = 0.1  # of the probability of a match, by the authors


class Matches(NamedTuple):
    """For each of the K keypoints of the first image: its partner's index in the second, or -1, and its score."""

    indices: jax.Array
    scores: jax.Array


class LightGlue(nn.Module):
    """The matches of two images from their keypoints. Both have K of them, of which some may not be valid.

    positions: [2, K, 2] as (x, y) in pixels. descriptors: [2, K, D]. valid: bool [2, K]. sizes: [2, 2], (width, height)
    of the images in pixels. dtype: of products.
    """

    layers: int = 9
    features: int = 256
    heads: int = 4
    dtype: Dtype | None = None

    @nn.compact
    def __call__(
        self,
        positions: jax.Array,
        descriptors: jax.Array,
        valid: jax.Array,
        sizes: jax.Array,
        threshold: float | jax.Array = THRESHOLD,
    ) -> Matches:
        sizes = sizes.astype(positions.dtype)
        positions = (positions - sizes[:, None] / 2) / (sizes.max(1)[:, None, None] / 2)
        angles = PositionEncoding(self.features // self.heads // 2, name="posenc")(positions)
        x = Dense(self.features, dtype=self.dtype, name="input_proj")(descriptors)
        for layer in range(self.layers):
            x = Layer(self.heads, self.dtype, name=f"transformers_{layer}")(x, valid, angles)
        both = valid[0, :, None] & valid[1]
        log_probabilities = Assignment(self.dtype, name=f"log_assignment_{self.layers - 1}")(x, both)
        return mutual(jnp.exp(log_probabilities), both, threshold)


class PositionEncoding(nn.Module):
    """The angles of a rotary position encoding, which rotates queries and keys."""

    features: int

    @nn.compact
    def __call__(self, positions: jax.Array) -> jax.Array:
        return Dense(self.features, use_bias=False, name="Wr")(positions)


class Layer(nn.Module):
    """Attention of the keypoints within each image, then between both."""

    heads: int
    dtype: Dtype | None

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array, angles: jax.Array) -> jax.Array:
        x = Attention(self.heads, self.dtype, name="self_attn")(x, valid, angles)
        return Attention(self.heads, self.dtype, name="cross_attn")(x, valid)


class Attention(nn.Module):
    """Attention and a feed-forward network for the keypoints [2, K, D] of two images.

    With angles, which are those of the rotary position encoding, the keypoints of each image attend to each other.
    Without angles, they attend to those of the other image.
    """

    heads: int
    dtype: Dtype | None

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array, angles: jax.Array | None = None) -> jax.Array:
        width, dense = x.shape[-1], partial(Dense, dtype=self.dtype)
        heads = (*x.shape[:-1], self.heads, width // self.heads)
        if angles is None:
            query = dense(width, name="to_qk")(x).reshape(heads)
            key, value = query[::-1], dense(width, name="to_v")(x).reshape(heads)[::-1]
            valid = valid[::-1]
        else:
            query, key, value = jnp.moveaxis(dense(3 * width, name="Wqkv")(x).reshape(*heads, 3), -1, 0)
            query, key = rotated(query, angles), rotated(key, angles)
        found = jax.nn.dot_product_attention(query, key, value, mask=valid[:, None, None])
        found = dense(width, name="to_out" if angles is None else "out_proj")(found.reshape(x.shape))
        y = dense(2 * width, name="ffn_0")(jnp.concatenate([x, found], -1))
        y = nn.gelu(nn.LayerNorm(epsilon=1e-5, dtype=self.dtype, name="ffn_1")(y), approximate=False)
        return x + dense(width, name="ffn_3")(y)


def rotated(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotates pairs of neighbouring features of x [2, K, heads, features] by angles [2, K, features / 2]."""
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    first, second = x[..., ::2], x[..., 1::2]
    both = first * cos - second * sin, second * cos + first * sin
    return jnp.stack(both, -1).reshape(x.shape).astype(x.dtype)


class Assignment(nn.Module):
    """The logarithms of the probabilities [K, K] of all pairs. both: whether both keypoints of a pair are valid."""

    dtype: Dtype | None

    @nn.compact
    def __call__(self, x: jax.Array, both: jax.Array) -> jax.Array:
        width = x.shape[-1]
        first, second = Dense(width, dtype=self.dtype, name="final_proj")(x) / width**0.25
        wide = jnp.promote_types(x.dtype, jnp.float32)
        similarity = jnp.einsum("kd,ld->kl", first, second, preferred_element_type=wide)
        similarity = jnp.where(both, similarity, jnp.finfo(wide).min)
        matchable = Dense(1, dtype=self.dtype, name="matchability")(x)[..., 0].astype(wide)
        certainty = jax.nn.log_sigmoid(matchable)
        of_pairs = jax.nn.log_softmax(similarity, 0) + jax.nn.log_softmax(similarity, 1)
        return of_pairs + certainty[0, :, None] + certainty[1]


def mutual(scores: jax.Array, valid: jax.Array, threshold: float | jax.Array) -> Matches:
    """The pairs of which each is the best match of the other, with a score above `threshold`.

    scores: [K, L], of all pairs. valid: bool [K, L].

    >>> mutual(jnp.array([[0.9, 0.2], [0.8, 0.1]]), jnp.ones((2, 2), bool), 0.5).indices.tolist()
    [0, -1]
    """
    scores = jnp.where(valid, scores, -jnp.inf)
    partners, best = scores.argmax(1), scores.max(1)
    matched = (scores.argmax(0)[partners] == jnp.arange(len(scores))) & (best > threshold)
    return Matches(jnp.where(matched, partners, -1), jnp.where(matched, best, 0))
