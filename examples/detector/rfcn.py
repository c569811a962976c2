"""R-FCN (Dai et al., arXiv 1605.06409) with deformable pooling: position-sensitive maps classify proposed regions.

Each map scores one part of one class, such as the top left of a 7. Bin (i, j) of a region averages the maps of its
part, and the score of a class is the mean over its bins. Deformable pooling (arXiv 1703.06211) shifts each bin. The
anchor-free head, with one class, proposes the regions.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from examples.library.boxes import Boxes, clip, decode, encode, iou
from examples.library.convolution import Conv
from jax_dcn.linen import DeformPSRoIPool

from . import losses
from .backbone import STRIDE, norm
from .evaluate import strongest
from .model import Detector, Predictions
from .scenes import Scenes

BINS, WIDTH = 3, 128
DELTA_SCALE = (0.1, 0.1, 0.2, 0.2)
REGION_OBJECT = 0.5
HARD_REGIONS = 32


class RegionPredictions(NamedTuple):
    """The outputs of both stages.

    first: what the head finds, of one class; regions: the proposals. logits [batch, regions, classes + 1]: of each
    class and, last, of no object; deltas [batch, regions, 4]: the object's box relative to the region, in units of
    `DELTA_SCALE`.
    """

    first: Predictions
    regions: Boxes
    logits: jax.Array
    deltas: jax.Array


class RFCN(Detector):
    """uint8 images [batch, height, width, 3], sides divisible by 8, to `RegionPredictions`.

    Its fields are those of `Detector`.
    """

    @nn.compact
    def __call__(self, images: jax.Array, true_boxes: Boxes | None = None) -> RegionPredictions:
        """`true_boxes`, which are passed in training, are added to the proposals."""
        features = self._features(images)
        first = self._head(features, 1)
        scores, boxes = jax.lax.stop_gradient((jax.nn.sigmoid(first.logits), clip(first.boxes, *images.shape[1:3])))
        best = jax.vmap(strongest)(scores, boxes)
        regions = Boxes(best.boxes, best.scores > 0)
        if true_boxes is not None:
            regions = Boxes(*(jnp.concatenate(pair, 1) for pair in zip(regions, true_boxes, strict=True)))
        features = nn.relu(norm("head_norm")(Conv(WIDTH, (1, 1), use_bias=False, name="head_conv")(features)))
        logits = self._vote("class", features, regions, self.classes + 1, self.classes + 1)
        deltas = self._vote("box", features, regions, 4, 1)
        return RegionPredictions(first, regions, logits, deltas)

    def scores_and_boxes(self, images: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = self(images)
        scores = jax.nn.softmax(found.logits)[..., :-1] * found.regions.valid[..., None]
        return scores, clip(refine(found.regions.boxes, found.deltas), *images.shape[1:3])

    def _vote(self, name, features, regions, outputs, classes):
        """The mean over the bins of position-sensitive maps: [batch, regions, outputs]."""
        maps = Conv(outputs * BINS**2, (1, 1), name=f"{name}_maps")(features)
        options = {"output_size": BINS, "group_size": BINS, "spatial_scale": 1 / STRIDE, "classes": classes}
        pool = DeformPSRoIPool(**options, sample_per_part=4, trans_std=0.1, name=f"{name}_pool")
        # Each image is a batch of its own, so that nothing is gathered if a batch is split over devices.
        return pool(maps[:, None], as_rois(regions), features[:, None]).mean((-3, -2))


def as_rois(regions: Boxes) -> jax.Array:
    """Regions [batch, n, 5] for the pooling: image index 0, or -1 for padding, and the first and the last pixel."""
    image = jnp.where(regions.valid, 0, -1)[..., None]
    last = jnp.array([0, 0, 1, 1])
    return jnp.concatenate([image, regions.boxes - last], -1)


def refine(regions: jax.Array, deltas: jax.Array) -> jax.Array:
    """The boxes of the objects [..., 4], which the second stage predicts from its regions."""
    return decode(deltas * jnp.array(DELTA_SCALE), regions)


def loss(model: RFCN, params: dict, batch: Scenes) -> jax.Array:
    """The loss of both stages on a batch of scenes."""
    found = model.apply({"params": params}, batch.images, Boxes(batch.boxes, batch.labels >= 0))
    objects = batch._replace(labels=jnp.minimum(batch.labels, 0))  # the first stage finds them, whatever their class
    return losses.of_predictions(found.first, objects) + region_loss(found, batch)


def region_loss(found: RegionPredictions, batch: Scenes) -> jax.Array:
    """Cross-entropy of the classes and smooth L1 loss of the boxes, mean over each image's `HARD_REGIONS` regions where
    the loss is largest (online hard example mining, arXiv 1604.03540)."""
    regions, logits = found.regions, found.logits
    overlap = jnp.where(batch.labels[:, None] >= 0, iou(regions.boxes[:, :, None], batch.boxes[:, None]), 0)
    objects, is_object = overlap.argmax(-1), overlap.max(-1) >= REGION_OBJECT
    classes = jnp.where(is_object, jnp.take_along_axis(batch.labels, objects, 1), logits.shape[-1] - 1)
    targets = encode(jnp.take_along_axis(batch.boxes, objects[..., None], 1), regions.boxes) / jnp.array(DELTA_SCALE)
    score = optax.softmax_cross_entropy_with_integer_labels(logits, classes)
    box = jnp.where(is_object, optax.huber_loss(found.deltas, targets).sum(-1), 0)
    hardest, _ = jax.lax.top_k(jnp.where(regions.valid, score + box, 0), HARD_REGIONS)
    return hardest.mean()
