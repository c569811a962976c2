"""Peaks of score maps, as detectors of keypoints and detectors without anchors read them."""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._primitive.promotion import by_standard_rules


@by_standard_rules
def find_peaks(
    scores: ArrayLike, count: int, *, radius: int = 1, rounds: int = 0, border: int = 0, min_score: float | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The positions of the local maxima of score maps, by falling score.

    A pixel is a peak if its score equals the largest one in the window of (2·radius + 1)² pixels around it. All pixels
    of a plateau of equal scores are peaks, as with the max pooling of CenterNet.

    A pixel that is lower than a neighbour is no peak even if that neighbour is none either. Each of the further
    ``rounds`` removes all pixels in the windows of the peaks so far, and adds the peaks of what remains. For scores
    that are not negative, these are the peaks of SuperPoint's `simple_nms`. The arguments of models:

    ===================  ======  ======
    model                radius  rounds
    ===================  ======  ======
    CenterNet            1       0
    SuperPoint           4       2
    ALIKED               2       2
    ===================  ======  ======

    The function is plain `jax.numpy`: it works inside and outside of `jit` and `vmap`. The gradients of the scores flow
    to the pixels of the peaks.

    Args:
      scores: [..., H, W]; float16, bfloat16, float32 or float64. The maps of all leading dimensions are independent.
      count: how many peaks at most are returned for each map.
      radius: how far the window reaches from its pixel along both axes, at least 1.
      rounds: how many rounds follow the first.
      border: peaks less than this many pixels from an edge of the map are left out, after all rounds: those of the rows
        0 to border - 1 and so on.
      min_score: peaks of a lower score are left out, too. None keeps them all.

    Returns:
      ``(positions, scores, valid)``: [..., count, 2] of int32, (row, column); [..., count] of the type of ``scores``;
      and [..., count] of bool. Peaks stand in the order of falling score, and of rising row and column where scores are
      equal. If a map has fewer peaks than ``count``, the other entries are 0, and there ``valid`` is false.

    A pixel of NaN or -inf is never a peak, and does not prevent its neighbours from being one.

    Raises:
      TypeError, ValueError: an argument has the wrong type, shape or value.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_dcn import find_peaks
      >>> scores = jnp.array([[0.1, 0.2, 0.9, 0.8, 0.7], [0.3, 0.1, 0.1, 0.2, 0.6]])
      >>> positions, best, valid = find_peaks(scores, 3)
      >>> positions.tolist(), valid.tolist()
      ([[0, 2], [1, 0], [0, 0]], [True, True, False])
      >>> find_peaks(scores, 3, rounds=1)[0].tolist()
      [[0, 2], [0, 4], [1, 0]]
    """
    scores = _validation.array("scores", scores)
    _validation.rank("scores", scores, 2, "[..., H, W]", least=True)
    count, radius = _validation.positive("count", count), _validation.positive("radius", radius)
    rounds, border = _validation.natural("rounds", rounds), _validation.natural("border", border)
    scores = jnp.where(jnp.isnan(scores), -math.inf, scores)
    constant = jax.lax.stop_gradient(scores)

    is_peak = _is_maximum(constant, radius)
    for _ in range(rounds):
        is_removed = _window_maximum(is_peak.astype(scores.dtype), radius) > 0
        is_peak |= _is_maximum(jnp.where(is_removed, -math.inf, constant), radius)
    *batch, height, width = scores.shape
    row, column = jnp.arange(height)[:, None], jnp.arange(width)
    is_peak &= (row >= border) & (row < height - border) & (column >= border) & (column < width - border)
    if min_score is not None:
        is_peak &= constant >= _validation.number("min_score", min_score)

    candidates = jnp.where(is_peak, scores, -math.inf).reshape(*batch, height * width)
    # top_k takes at least as many elements as it returns.
    candidates = jnp.pad(candidates, [*[(0, 0)] * len(batch), (0, count)], constant_values=-math.inf)
    best, index = jax.lax.top_k(candidates, count)
    valid = best > -math.inf
    index = jnp.where(valid, index, 0).astype(jnp.int32)
    row_of_peak = jax.lax.div(index, jnp.full_like(index, max(width, 1)))  # not jnp.divmod, which jax2onnx lacks
    positions = jnp.stack([row_of_peak, index - row_of_peak * width], -1)
    return positions, jnp.where(valid, best, 0), valid


def _is_maximum(scores: jax.Array, radius: int) -> jax.Array:
    return (scores == _window_maximum(scores, radius)) & (scores > -math.inf)


def _window_maximum(scores: jax.Array, radius: int) -> jax.Array:
    """The largest score in the window around each pixel: that of the largest scores of its rows."""
    batch, side = [1] * (scores.ndim - 2), 2 * radius + 1
    for window in ((1, side), (side, 1)):
        scores = jax.lax.reduce_window(scores, -math.inf, jax.lax.max, (*batch, *window), [1] * scores.ndim, "SAME")
    return scores
