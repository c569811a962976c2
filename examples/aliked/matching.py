"""From photographs to keypoints, and from the keypoints of two photographs to matches."""

from functools import partial
from typing import Any

import jax

from .lightglue import LightGlue, Matches, mutual
from .model import Aliked, Found

MIN_SIMILARITY = 0.75  # the least cosine of nearest neighbours, by the authors


@partial(jax.jit, static_argnames=("model", "count"))
def extract(
    model: Aliked, variables: dict[str, Any], pixels: jax.Array, mask: jax.Array, threshold: float, *, count: int
) -> tuple[Found, list[jax.Array]]:
    """What a model finds in images, uint8 [N, H, W, 3], and the offsets [N, rows, columns, 18] of the two convolutions
    of the last block. mask, threshold and count: as of `find_keypoints`.
    """
    options = {"threshold": threshold, "mask": mask, "mutable": "intermediates"}
    found, kept = model.apply(variables, pixels / 255.0, count, **options)
    return found, [kept["intermediates"]["block4"][f"offset{index}"][0] for index in (1, 2)]


@partial(jax.jit, static_argnames="model")
def match(model: LightGlue, variables: dict[str, Any], *pair: jax.Array) -> Matches:
    """Matches a pair of images by LightGlue, which says what its arguments are."""
    return model.apply(variables, *pair)


@jax.jit
def nearest_neighbours(
    descriptors: jax.Array, valid: jax.Array, min_similarity: float | jax.Array = MIN_SIMILARITY
) -> Matches:
    """Matches descriptors [2, K, D] of unit length to their nearest neighbours. valid: bool [2, K]."""
    return mutual(descriptors[0] @ descriptors[1].T, valid[0, :, None] & valid[1], min_similarity)
