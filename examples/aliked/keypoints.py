"""Keypoints are peaks of a score map. A soft arg-max refines them, so their positions are differentiable."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import jax_dcn

RADIUS = 2  # of the window around a peak, in pixels
ROUNDS = 2  # of the non-maximum suppression, after the first
TEMPERATURE = 0.1  # of the soft arg-max


class Keypoints(NamedTuple):
    """A fixed number of keypoints of each image, the highest peaks first.

    positions: [N, K, 2] as (x, y) in pixels. scores: [N, K], of the map at the positions. dispersity: [N, K], the mean
    squared distance of the scores in the window from the position, in units of RADIUS. valid: [N, K], False for
    padding.
    """

    positions: jax.Array
    scores: jax.Array
    dispersity: jax.Array
    valid: jax.Array


def find_keypoints(
    score_map: jax.Array, count: int, *, threshold: float | jax.Array = 0.0, mask: jax.Array | None = None
) -> Keypoints:
    """The keypoints in score maps [N, H, W].

    threshold: the lowest score of a peak. mask: bool [N, H, W], the pixels that may be peaks; by default all but
    RADIUS at each border, which are never peaks.

    >>> found = find_keypoints(jnp.zeros((1, 9, 9)).at[0, 3, 4].set(0.5), count=2, threshold=0.2)
    >>> found.positions[0, 0].tolist(), found.valid.tolist()
    ([4.0, 3.0], [[True, False]])
    """
    scores = jax.lax.stop_gradient(score_map)
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.nan)
    peaks, best, valid = jax_dcn.find_peaks(scores, count, radius=RADIUS, rounds=ROUNDS, border=RADIUS)
    steps = jnp.arange(-RADIUS, RADIUS + 1)
    window = jnp.stack(jnp.meshgrid(steps, steps, indexing="ij"), -1).reshape(-1, 2)
    weights = jax.nn.softmax(pixels_at(score_map, peaks[:, :, None] + window) / TEMPERATURE)
    shift = weights @ window.astype(weights.dtype)
    distances = jnp.square((window - shift[..., None, :]) / RADIUS).sum(-1)
    positions = (peaks + shift)[..., ::-1]
    at_positions = sample(score_map[..., None], positions)[..., 0]
    return Keypoints(positions, at_positions, (weights * distances).sum(-1), valid & (best >= threshold))


def pixels_at(maps: jax.Array, pixels: jax.Array) -> jax.Array:
    """The values of maps [N, H, W, ...] at pixels [N, ..., 2], which are (row, column)."""
    return jax.vmap(lambda one, at: one[at[..., 0], at[..., 1]])(maps, pixels)


def sample(maps: jax.Array, positions: jax.Array) -> jax.Array:
    """The values of maps [N, H, W, C] at positions [N, ..., 2], which are (x, y) in pixels; zero outside."""
    height, width = maps.shape[1:3]
    grid = 2 * positions / jnp.array([width - 1, height - 1], positions.dtype) - 1
    return jax_dcn.grid_sample(maps, grid, align_corners=True)
