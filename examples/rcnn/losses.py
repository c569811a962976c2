"""The training losses of both stages, equal to mmdet's."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from examples.library.boxes import Boxes
from jax_dcn import roi_align

from .assign import NEGATIVE, UNUSED, Samples, sample_anchors, sample_regions
from .config import ANCHORS, Selection
from .detector import RCNN
from .roi_heads import MASK_BINS
from .rpn import AnchorPredictions, encode, propose, take


class Batch(NamedTuple):
    """RGB images, uint8 [batch, height, width, 3], and their objects.

    boxes: [batch, m, 4] as (x0, y0, x1, y1) in pixels; labels: [batch, m], -1 for padding; masks: uint8
    [batch, m, height, width].
    """

    images: jax.Array
    boxes: jax.Array
    labels: jax.Array
    masks: jax.Array

    @property
    def truth(self) -> Boxes:
        """The boxes, and which of them are no padding."""
        return Boxes(self.boxes, self.labels >= 0)


def losses(model: RCNN, batch: Batch, key: jax.Array, regions: Selection | None = None) -> dict[str, jax.Array]:
    """The losses of mmdet by name, for `model.apply(..., method=losses)`. Their sum is what training minimises.

    regions: which regions the heads are trained on; by default, as in mmdet.
    """
    regions = regions or model.config.regions
    anchor_key, region_key = jax.random.split(key)
    features = model.features(batch.images)
    predictions = model.rpn_head(features)
    found = anchor_losses(predictions, batch.truth, anchor_key, ANCHORS, model.config.anchor_stds)
    proposals, _ = propose(predictions, *batch.images.shape[1:3], model.config.training_proposals)
    samples = sample_regions(region_key, proposals, batch.truth, regions)
    return found | region_losses(model, features, samples, batch, regions)


def anchor_losses(
    predictions: AnchorPredictions,
    truth: Boxes,
    key: jax.Array,
    settings: Selection,
    stds: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0),
) -> dict[str, jax.Array]:
    """Cross-entropy of objects and L1 loss of their boxes, in `stds`, per anchor that is drawn."""
    anchors = jnp.concatenate(predictions.anchors)
    logits, deltas = (jnp.concatenate(parts, 1) for parts in predictions[1:])
    objects = sample_anchors(key, anchors, truth, settings)
    positive, negative = objects >= 0, objects == NEGATIVE
    count = sum(jnp.maximum(kind.sum(1), 1).sum() for kind in (positive, negative))
    score = optax.sigmoid_binary_cross_entropy(logits, positive)
    targets = encode(take(truth.boxes, jnp.maximum(objects, 0)), anchors)
    box = (jnp.abs(deltas - targets) / jnp.array(stds)).sum(-1)
    return {
        "loss_rpn_cls": jnp.where(positive | negative, score, 0).sum() / count,
        "loss_rpn_bbox": jnp.where(positive, box, 0).sum() / count,
    }


def region_losses(
    model: RCNN, features: list[jax.Array], samples: Samples, batch: Batch, settings: Selection
) -> dict[str, jax.Array]:
    """Cross-entropy of classes and L1 loss of boxes, per region, and cross-entropy of the masks' cells."""
    regions, objects = samples
    logits, deltas = model.roi_head.classify(features, regions)
    positive, object_or_0 = objects >= 0, jnp.maximum(objects, 0)
    labels = jnp.where(positive, take(batch.labels, object_or_0), model.config.classes)
    count = jnp.maximum((objects != UNUSED).sum(), 1)
    score = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    targets = encode(take(batch.boxes, object_or_0), regions.boxes) / jnp.array(model.config.box_stds)
    own_class = jnp.where(positive, labels, 0)
    box = jnp.abs(jnp.take_along_axis(deltas, own_class[..., None, None], 2)[:, :, 0] - targets).sum(-1)
    found = {
        "loss_cls": jnp.where(regions.valid, score, 0).sum() / count,
        "loss_bbox": jnp.where(positive, box, 0).sum() / count,
    }
    if model.config.masks:
        # Only the first regions of a sample may be positive. A mask may have lost all pixels when it was resized.
        first = int(settings.count * settings.positive_fraction)
        has_mask = positive & take(batch.masks.any((-2, -1)), object_or_0)
        regions = Boxes(regions.boxes[:, :first], has_mask[:, :first])
        logits = model.roi_head.segment(features, regions, own_class[:, :first])
        cells = optax.sigmoid_binary_cross_entropy(logits, mask_targets(batch.masks, regions, object_or_0[:, :first]))
        mean = cells.mean((-2, -1))
        found["loss_mask"] = jnp.where(regions.valid, mean, 0).sum() / jnp.maximum(regions.valid.sum(), 1)
    return found


def mask_targets(masks: jax.Array, regions: Boxes, objects: jax.Array) -> jax.Array:
    """Which cells of regions [batch, n] the masks [batch, m, height, width] of their objects cover by half or more."""
    index = jnp.where(regions.valid, objects, -1)[..., None].astype(regions.boxes.dtype)
    rois = jnp.concatenate([index, regions.boxes], -1)
    cells = jax.vmap(partial(roi_align, output_size=2 * MASK_BINS))(masks[..., None].astype(jnp.float32), rois)
    return cells[..., 0] >= 0.5
