"""Functions of boxes that detectors need: non-maximum suppression, and levels of a feature pyramid."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_dcn import _validation
from jax_dcn._operators.bilinear import rounded_product
from jax_dcn._primitive.jax_internals import vary_alike
from jax_dcn._primitive.promotion import by_standard_rules

# A multiple of the vector length of CPUs. On two CPU cores, 64 to 512 boxes take about the same time; long blocks are
# better for GPUs, because blocks are processed one after the other.
_BLOCK = 256

# What suppresses the boxes of an example in place of `_nms`, while a function is exported to ONNX. `jit` does not reuse
# what it traced with another value.
SUPPRESSOR = jax.make_user_context(None)


def nms(
    boxes: ArrayLike, scores: ArrayLike, iou_threshold: float, *, max_outputs: int, classes: ArrayLike | None = None
) -> tuple[jax.Array, jax.Array]:
    """Greedy non-maximum suppression: the indices of the boxes that no better box overlaps too much.

    It goes through the boxes by falling score, and through boxes of equal score by rising index. A box is kept unless
    its IoU (intersection over union) with a box that was kept before is greater than ``iou_threshold``. The boxes kept
    are those of `torchvision.ops.nms`, and with ``classes`` those of `torchvision.ops.batched_nms`, cut off after
    ``max_outputs`` boxes. (For few boxes, batched_nms moves the classes apart, which rounds the coordinates, so that an
    IoU very close to the threshold may be on its other side.)

    The function is plain `jax.numpy`: it works inside and outside of `jit`, `vmap` and `scan`. No gradient flows
    through it. Its time grows with N · ``max_outputs`` or, with classes and for at least N / 2 outputs, with the sum of
    the squares of the numbers of boxes in each class. Its memory grows with N + ``max_outputs``, not with N².

    Args:
      boxes: [..., N, 4], (x1, y1, x2, y2) in any unit, float32, float64 or integers. The size of a box is x2 - x1 by
        y2 - y1, without the additional pixel of older libraries. IoUs are computed in float32, or in float64 for boxes
        of float64.
      scores: [..., N], any floating type. The leading dimensions of all arguments are the same; each of their examples
        is suppressed separately.
      iou_threshold: a number from 0 to 1.
      max_outputs: how many boxes at most are kept.
      classes: [..., N], integers. Boxes of different classes do not suppress each other.

    Returns:
      ``(indices, valid)``, [..., max_outputs] of int32 and bool. The first entries of ``indices`` are the indices of
      the kept boxes by falling score, and there ``valid`` is true. All others are 0, so that they can index an array
      of N boxes without leaving it; mask what is read with them by ``valid``.

    A box is never kept, and suppresses none, if its score is -inf or NaN or one of its coordinates is NaN. Give padding
    a score of -inf. (torchvision keeps such boxes.) A box whose area is zero has an IoU of 0 with any other, or of NaN
    with another one without area, so it neither suppresses nor is suppressed.

    Raises:
      TypeError, ValueError: an argument has the wrong type, or the shapes do not fit together.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_dcn import nms
      >>> boxes = jnp.array([[0, 0, 10, 10], [1, 0, 11, 10], [20, 0, 30, 10], [0, 0, 9, 10]], jnp.float32)
      >>> indices, valid = nms(boxes, jnp.array([0.6, 0.9, 0.7, 0.8]), 0.5, max_outputs=3)
      >>> indices.tolist(), valid.tolist()
      ([1, 2, 0], [True, True, False])
    """
    boxes = _boxes(boxes, "[..., N, 4]", 2)
    scores = jax.lax.stop_gradient(_validation.array("scores", scores))
    if scores.shape != boxes.shape[:-1]:
        raise ValueError(f"scores must have shape {boxes.shape[:-1]}, one per box, got {scores.shape}")
    if classes is not None:
        classes = _validation.as_array("classes", classes)
        if not jnp.issubdtype(classes.dtype, jnp.integer):
            raise TypeError(f"classes must be of an integer type, got {classes.dtype}")
        if classes.shape != scores.shape:
            raise ValueError(f"classes must have shape {scores.shape}, one per box, got {classes.shape}")
    threshold = _validation.number("iou_threshold", iou_threshold)
    if not 0 <= threshold <= 1:
        raise ValueError(f"iou_threshold must be from 0 to 1, got {iou_threshold!r}")

    suppress = partial(SUPPRESSOR.value or _nms, max_outputs=_validation.positive("max_outputs", max_outputs))
    for _ in scores.shape[:-1]:
        suppress = jax.vmap(suppress, in_axes=(0, 0, None if classes is None else 0, None))
    return suppress(boxes, scores, classes, _rounded_down(threshold, boxes.dtype))


@partial(jax.jit, static_argnames="max_outputs")
@by_standard_rules
def _nms(
    boxes: jax.Array, scores: jax.Array, classes: jax.Array | None, threshold: ArrayLike, *, max_outputs: int
) -> tuple[jax.Array, jax.Array]:
    """`nms` of one example, block by block of the sorted boxes.

    Inside `shard_map`, what loops begin with must vary over the axes of the mesh as what they compute does.
    """
    boxes, scores, classes = vary_alike([boxes, scores, classes])
    # At least one entry of padding, so that the last one of the sorted boxes is NaN: its IoU exceeds no threshold.
    num_boxes = scores.shape[0]
    padding = _BLOCK - num_boxes % _BLOCK
    is_candidate = (scores > -math.inf) & ~jnp.isnan(boxes).any(-1)
    scores = jnp.pad(jnp.where(is_candidate, scores, -math.inf), (0, padding), constant_values=-math.inf)
    order = jnp.argsort(scores, descending=True, stable=True).astype(jnp.int32)
    boxes = jnp.pad(boxes, ((0, padding), (0, 0)), constant_values=math.nan)[order]
    classes = None if classes is None else jnp.pad(classes, (0, padding))[order]
    num_candidates = is_candidate.sum(dtype=jnp.int32)
    # Few outputs are found early in the order of the scores; for many, only boxes of one class need to be compared.
    # A symbolic number of boxes is not known to be small.
    if classes is not None and isinstance(num_boxes, int) and 2 * max_outputs >= num_boxes:
        kept, num_kept = _best_by_class(boxes, classes, num_candidates, threshold, max_outputs)
    else:
        kept, num_kept = _best(boxes, classes, num_candidates, threshold, max_outputs)
    valid = jnp.arange(max_outputs) < num_kept
    return jnp.where(valid, order[kept], 0), valid


def _best(
    boxes: jax.Array, classes: jax.Array | None, num_candidates: jax.Array, threshold: ArrayLike, max_outputs: int
) -> tuple[jax.Array, jax.Array]:
    """The indices of the first boxes that are kept, [max_outputs], and their number, of boxes sorted by score.

    A block is compared with the boxes that were kept before, and then with itself, until there are enough.
    """

    def is_unfinished(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        block, num_kept, _ = state
        return (block * _BLOCK < num_candidates) & (num_kept < max_outputs)

    def process_block(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        block, num_kept, kept = state
        indices = block * _BLOCK + jnp.arange(_BLOCK, dtype=jnp.int32)
        own = _part(boxes, classes, indices)
        remains = (indices < num_candidates) & ~_overlap(_part(boxes, classes, kept), own, threshold).any(0)
        is_kept = _kept_within(own, remains, threshold)
        place = jnp.where(is_kept, num_kept + jnp.cumsum(is_kept, dtype=jnp.int32) - 1, max_outputs)
        return block + 1, num_kept + is_kept.sum(dtype=jnp.int32), kept.at[place].set(indices, mode="drop")

    nothing = boxes.shape[0] - 1
    *start, _ = vary_alike([jnp.int32(0), jnp.int32(0), jnp.full(max_outputs, nothing, jnp.int32), boxes])
    _, num_kept, kept = jax.lax.while_loop(is_unfinished, process_block, tuple(start))
    return kept, num_kept


def _best_by_class(
    boxes: jax.Array, classes: jax.Array, num_candidates: jax.Array, threshold: ArrayLike, max_outputs: int
) -> tuple[jax.Array, jax.Array]:
    """The same, for so many outputs that nearly all boxes are needed: each class has boxes next to each other.

    A block is compared with the blocks before it that have boxes of its first class, and then with itself.
    """
    last = jnp.iinfo(classes.dtype).max
    grouped = jnp.where(jnp.arange(len(boxes)) < num_candidates, classes, last)
    order = jnp.argsort(grouped, stable=True).astype(jnp.int32)
    boxes, grouped = boxes[order], grouped[order]
    blocks = jnp.arange(0, len(boxes), _BLOCK)
    first_blocks = jnp.searchsorted(grouped, grouped[blocks]).astype(jnp.int32) // _BLOCK

    def process_block(block: jax.Array, is_kept: jax.Array) -> jax.Array:
        indices = block * _BLOCK + jnp.arange(_BLOCK, dtype=jnp.int32)
        own = _part(boxes, grouped, indices)

        def compare(earlier: jax.Array, remains: jax.Array) -> jax.Array:
            rivals = earlier * _BLOCK + jnp.arange(_BLOCK, dtype=jnp.int32)
            suppresses = _overlap(_part(boxes, grouped, rivals), own, threshold) & is_kept[rivals][:, None]
            return remains & ~suppresses.any(0)

        remains = jax.lax.fori_loop(first_blocks[block], block, compare, indices < num_candidates)
        return jax.lax.dynamic_update_slice(is_kept, _kept_within(own, remains, threshold), (block * _BLOCK,))

    num_blocks = (num_candidates + _BLOCK - 1) // _BLOCK
    none, _ = vary_alike([jnp.zeros(len(boxes), bool), boxes])
    is_kept = jax.lax.fori_loop(0, num_blocks, process_block, none)
    by_score = jnp.zeros_like(is_kept).at[order].set(is_kept)
    place = jnp.where(by_score, jnp.cumsum(by_score, dtype=jnp.int32) - 1, max_outputs)
    kept = jnp.full(max_outputs, len(boxes) - 1, jnp.int32)
    return kept.at[place].set(jnp.arange(len(boxes), dtype=jnp.int32), mode="drop"), by_score.sum(dtype=jnp.int32)


def _part(boxes: jax.Array, classes: jax.Array | None, indices: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    return boxes[indices], None if classes is None else classes[indices]


def _overlap(
    first: tuple[jax.Array, jax.Array | None], second: tuple[jax.Array, jax.Array | None], threshold: ArrayLike
) -> jax.Array:
    """Whether boxes, with their classes, suppress each other."""
    overlaps = _iou(first[0][:, None], second[0]) > threshold
    if first[1] is None or second[1] is None:
        return overlaps
    return overlaps & (first[1][:, None] == second[1])


def _kept_within(block: tuple[jax.Array, jax.Array | None], remains: jax.Array, threshold: ArrayLike) -> jax.Array:
    """Which of the boxes of a block that remain are not suppressed by another one of them."""
    suppresses = _overlap(block, block, threshold) & (np.arange(_BLOCK)[:, None] < np.arange(_BLOCK))

    # The first n boxes are final after n iterations, and all boxes as soon as an iteration changes none.
    def iterate(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        is_kept, _ = state
        updated = remains & ~(suppresses & is_kept[:, None]).any(0)
        return updated, (updated != is_kept).any()

    first = vary_alike([remains, jnp.array(True)])
    is_kept, _ = jax.lax.while_loop(lambda state: state[1], iterate, tuple(first))
    return is_kept


def _iou(a: jax.Array, b: jax.Array) -> jax.Array:
    """Intersection over union of boxes, which are broadcast against each other; NaN where the union has no area.

    Every operation rounds on its own, as in torchvision, because the last bit may decide whether a box is kept.
    """
    size = jnp.maximum(jnp.minimum(a[..., 2:], b[..., 2:]) - jnp.maximum(a[..., :2], b[..., :2]), 0)
    intersection = rounded_product(size[..., 0], size[..., 1])
    return intersection / (_area(a) + _area(b) - intersection)


def _area(boxes: jax.Array) -> jax.Array:
    return rounded_product(boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1])


def _rounded_down(number: float, dtype: np.dtype) -> np.ndarray:
    """The largest value of `dtype` that is at most `number`. A value of `dtype` is greater than both or neither."""
    rounded = np.asarray(number, dtype)
    return rounded if float(rounded) <= number else np.nextafter(rounded, np.asarray(-math.inf, dtype))


@by_standard_rules
def fpn_levels(
    boxes: ArrayLike,
    *,
    num_levels: int,
    min_level: int = 2,
    canonical_level: int = 4,
    canonical_size: float = 224.0,
    ratio_eps: float = 0.0,
    level_eps: float = 1e-6,
) -> jax.Array:
    """The level of a feature pyramid from which the features of each box are pooled, by the size of the box.

    This is equation 1 of `Feature Pyramid Networks <https://arxiv.org/abs/1612.03144>`_ (Lin et al., 2017),
    floor(``canonical_level`` + log2(sqrt(area) / ``canonical_size``)), limited to the levels that exist and counted
    from ``min_level``. The epsilons make it robust to rounding where a box has exactly the size at which a level
    begins: floor(``canonical_level`` + log2(sqrt(area) / ``canonical_size`` + ``ratio_eps``) + ``level_eps``).

    Libraries choose the parameters differently:

    ========================  =========  ===============  ==============  =========  =========
    library                   min_level  canonical_level  canonical_size  ratio_eps  level_eps
    ========================  =========  ===============  ==============  =========  =========
    torchvision, the default  2          4                224             0          1e-6
    Detectron2                2          4                224             1e-8       0
    mmdet, finest_scale=56    0          0                56              1e-6       0
    ========================  =========  ===============  ==============  =========  =========

    Args:
      boxes: [..., 4], (x1, y1, x2, y2) in pixels of the image, float32, float64 or integers. Levels are computed in
        float32, or in float64 for boxes of float64. For regions of interest [..., 5], pass ``rois[..., 1:]``.
      num_levels: how many levels the pyramid has.
      min_level: the level of its finest features: 2 if their stride is 4.
      canonical_level: the level of a box whose size, the square root of its area, is ``canonical_size`` pixels.
      canonical_size: that size.
      ratio_eps: is added to the ratio of the sizes.
      level_eps: is added to its logarithm.

    Returns:
      [...] of int32, from 0, for the finest features, to ``num_levels`` - 1. It is 0 for boxes that are empty or NaN.

    Raises:
      TypeError, ValueError: an argument has the wrong type, shape or value.

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_dcn import fpn_levels
      >>> sizes = jnp.array([10, 111, 112, 224, 448, 2000])
      >>> boxes = jnp.stack([0 * sizes, 0 * sizes, sizes, sizes], -1)
      >>> fpn_levels(boxes, num_levels=4).tolist()
      [0, 0, 1, 2, 3, 3]
    """
    boxes = _boxes(boxes, "[..., 4]", 1)
    num_levels = _validation.positive("num_levels", num_levels)
    base = _validation.number("canonical_level", canonical_level)
    finest = _validation.number("min_level", min_level)
    size = _validation.number("canonical_size", canonical_size)
    if size <= 0:
        raise ValueError(f"canonical_size must be positive, got {canonical_size!r}")
    ratio = jnp.sqrt(_area(boxes)) / size + _validation.number("ratio_eps", ratio_eps)
    level = jnp.floor(base + jnp.log2(ratio) + _validation.number("level_eps", level_eps)) - finest
    return jnp.clip(jnp.where(jnp.isnan(level), 0, level), 0, num_levels - 1).astype(jnp.int32)


def _boxes(boxes: ArrayLike, axes: str, ndim: int) -> jax.Array:
    """Boxes that were checked, in float32 or float64, through which no gradient flows."""
    checked = _validation.coordinates("boxes", boxes)
    if checked.ndim < ndim or checked.shape[-1] != 4:
        raise ValueError(f"boxes must have shape {axes}, got {checked.shape}")
    dtype = checked.dtype if jnp.issubdtype(checked.dtype, jnp.floating) else jnp.float32
    return jax.lax.stop_gradient(checked.astype(dtype))
