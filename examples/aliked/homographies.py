"""Random homographies, which relate the positions in an image to those in a view of it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .keypoints import RADIUS, Keypoints, sample
from .lightglue import Matches, mutual

CORNERS = ((-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0))
TURN, ZOOM, SHIFT, SKEW = 0.5, 0.2, 0.1, 0.15  # the largest: radians, and fractions of the image
TOLERANCE = 3.0  # pixels


def random_homography(key: jax.Array, size: tuple[int, int]) -> jax.Array:
    """A matrix [3, 3] that takes positions (x, y) in an image of `size`, (height, width), to those in another view."""
    turn, zoom, shift, skew = (
        jax.random.uniform(one, shape, minval=-1, maxval=1)
        for one, shape in zip(jax.random.split(key, 4), ((), (), (2,), (4, 2)), strict=True)
    )
    middle = (jnp.array(size[::-1]) - 1) / 2
    corners = jnp.array(CORNERS) * middle
    cos, sin = jnp.cos(TURN * turn), jnp.sin(TURN * turn)
    turned = (corners + 2 * SKEW * skew * middle) @ jnp.array([[cos, sin], [-sin, cos]]) * jnp.exp(ZOOM * zoom)
    return through(corners + middle, turned + (1 + 2 * SHIFT * shift) * middle)


def through(sources: jax.Array, targets: jax.Array) -> jax.Array:
    """The homography [3, 3] that takes four positions [4, 2] to four others.

    >>> corners = jnp.array([[0.0, 0.0], [4.0, 0.0], [4.0, 4.0], [0.0, 4.0]])
    >>> through(corners, corners + 1).round(3).tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]
    """
    whole = jnp.concatenate([sources, jnp.ones((4, 1))], 1)
    zeros = jnp.zeros((4, 3))
    by_axis = [
        jnp.concatenate([*places, -targets[:, axis, None] * sources], 1)
        for axis, places in enumerate(((whole, zeros), (zeros, whole)))
    ]
    found = jnp.linalg.solve(jnp.concatenate(by_axis), targets.T.ravel())
    return jnp.append(found, 1).reshape(3, 3)


def project(homography: jax.Array, positions: jax.Array) -> jax.Array:
    """Where a homography takes positions [..., 2]."""
    moved = positions @ homography[:, :2].T + homography[:, 2]
    return moved[..., :2] / moved[..., 2:]


def warp(pixels: jax.Array, mask: jax.Array, homography: jax.Array) -> tuple[jax.Array, jax.Array]:
    """An image, uint8 [H, W, 3], and its mask of keypoints [H, W], in the view of a homography."""
    height, width = mask.shape
    places = jnp.stack(jnp.meshgrid(jnp.arange(width), jnp.arange(height)), -1)
    sources = project(jnp.linalg.inv(homography), places)
    found = sample(jnp.concatenate([pixels, mask[..., None]], -1)[None].astype("float32"), sources[None])[0]
    inside = (sources >= RADIUS) & (sources <= jnp.array([width, height]) - 1 - RADIUS)
    return found[..., :3].round().astype("uint8"), inside.all(-1) & (found[..., 3] > 0.99)


class Counts(NamedTuple):
    """Numbers of matches: of all, of inliers, of pairs of keypoints that should be matched, and how many of these are.

    The precision is inliers / matches, and the recall is found / pairs.
    """

    matches: jax.Array
    inliers: jax.Array
    pairs: jax.Array
    found: jax.Array


def evaluate(first: Keypoints, second: Keypoints, matches: Matches, homography: jax.Array) -> Counts:
    """Counts matches of two images. Keypoints are those of one image each, with positions [K, 2].

    A match is an inlier if it is right within TOLERANCE. Two keypoints are a pair if each is the nearest one to the
    other, within TOLERANCE. A pair is found if an inlier has its first keypoint.
    """
    distances = jnp.linalg.norm(project(homography, first.positions)[:, None] - second.positions, axis=-1)
    distances = jnp.where(first.valid[:, None] & second.valid, distances, jnp.inf)
    is_match = matches.indices >= 0
    is_inlier = is_match & (distances[jnp.arange(len(distances)), matches.indices] <= TOLERANCE)
    is_paired = mutual(-distances, distances < jnp.inf, -TOLERANCE).indices >= 0
    return Counts(*(one.sum() for one in (is_match, is_inlier, is_paired, is_paired & is_inlier)))
