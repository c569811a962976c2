"""From photographs to key points, and from the key points of two photographs to matches."""

from functools import partial
from typing import Any

import jax

from .lightglue import LightGlue, Matches, mutual
from .model import Aliked, Found

MIN_SIMILARITY = 0.75  # of nearest neighbours, by the authors


@partial(jax.jit, static_argnames=("model", "count"))
def extract(
    model: Aliked, variables: dict[str, Any], pixels: jax.Array, mask: jax.Array, threshold: float, *, count: int
) -> Found:
    """What a model finds in images, uint8 [N, H, W, 3]; mask, threshold and count: as of `find_keypoints`."""
    return model.apply(variables, pixels / 255.0, count, threshold=threshold, mask=mask)


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
