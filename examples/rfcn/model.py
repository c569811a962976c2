"""R-FCN (Dai et al., arXiv 1605.06409): regions are proposed, then classified by position-sensitive maps.

Each map scores one part of one class, such as the top left of a 7. Bin (i, j) of a region averages the maps of its
part, and the score of a class is the mean over its bins. Deformable pooling (arXiv 1703.06211) shifts each bin.
"""

from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.library.boxes import Boxes, clip, decode
from examples.library.layers import Conv, relu
from jax_dcn import nms, psroi_pool
from jax_dcn.linen import DeformPSRoIPool

from .backbone import STRIDE, Backbone, locations, norm

OBJECT_PRIOR = 0.01
CANDIDATES, PROPOSALS, PROPOSAL_THRESHOLD = 192, 64, 0.7
DETECTIONS, DETECTION_THRESHOLD = 100, 0.6
MIN_SIDE, MAX_LOG_SCALE = 1.0, 4.0
BINS, SAMPLES_PER_PART, TRANS_STD, WIDTH = 3, 4, 0.1, 128
DELTA_SCALE = (0.1, 0.1, 0.2, 0.2)


class Predictions(NamedTuple):
    """The outputs of both stages.

    object_logits [batch, cells], object_boxes [batch, cells, 4]: of the first stage, which finds objects of any class.
    regions: the proposals. logits [batch, regions, classes + 1]: of each class and, last, of no object; deltas [batch,
    regions, 4]: the object's box relative to the region, in units of `DELTA_SCALE`.
    """

    object_logits: jax.Array
    object_boxes: jax.Array
    regions: Boxes
    logits: jax.Array
    deltas: jax.Array


class Detections(NamedTuple):
    """The best objects of each image: boxes [batch, n, 4], classes [batch, n], and scores [batch, n], 0 for none."""

    boxes: jax.Array
    scores: jax.Array
    classes: jax.Array


class RFCN(nn.Module):
    """uint8 images [batch, height, width, 3], sides divisible by 8, to `Predictions`.

    deformable_convolution: in the last stage of the backbone; deformable_pooling: of classes and boxes. widths, blocks:
    as in `Backbone`.
    """

    classes: int
    deformable_convolution: bool = True
    deformable_pooling: bool = True
    widths: tuple[int, int, int, int] = Backbone.widths
    blocks: tuple[int, int, int] = Backbone.blocks

    @nn.compact
    def __call__(self, images: jax.Array, truth: Boxes | None = None) -> Predictions:
        """truth: boxes of objects, which are added to the proposals in training."""
        features = Backbone(self.deformable_convolution, self.widths, self.blocks, name="backbone")(images)
        logits, boxes = self._objects(features)
        regions = jax.vmap(propose)(*jax.lax.stop_gradient((logits, clip(boxes, *images.shape[1:3]))))
        if truth is not None:
            regions = Boxes(*(jnp.concatenate(pair, 1) for pair in zip(regions, truth, strict=True)))
        hidden = relu(norm("head_norm")(Conv(WIDTH, (1, 1), use_bias=False, name="head_conv")(features)))
        class_logits = self._vote("class", hidden, regions, self.classes + 1, self.classes + 1)
        return Predictions(logits, boxes, regions, class_logits, self._vote("box", hidden, regions, 4, 1))

    def _objects(self, features):
        """Whether there is an object at each cell, and its box."""
        batch, rows, columns, _ = features.shape
        prior = nn.initializers.constant(jnp.log(OBJECT_PRIOR / (1 - OBJECT_PRIOR)))
        logits = self._branch("object", features, 1, prior)
        geometry = self._branch("object_box", features, 4, nn.initializers.zeros).reshape(batch, -1, 4)
        centres = locations(rows * STRIDE, columns * STRIDE) + STRIDE * geometry[..., :2]
        half = STRIDE * jnp.exp(jnp.minimum(geometry[..., 2:], MAX_LOG_SCALE))
        return logits.reshape(batch, -1), jnp.concatenate([centres - half, centres + half], -1)

    def _branch(self, name, x, channels, bias_init):
        x = relu(norm(f"{name}_norm")(Conv(self.widths[-1], (3, 3), use_bias=False, name=f"{name}_conv")(x)))
        return Conv(channels, (1, 1), bias_init=bias_init, name=f"{name}_out")(x)

    def _vote(self, name, features, regions, outputs, classes):
        """The mean over the bins of position-sensitive maps: [batch, regions, outputs].

        Deformable pooling sows its `offset` as an intermediate.
        """
        maps = Conv(outputs * BINS**2, (1, 1), name=f"{name}_maps")(features)
        # Each image is a batch of its own, so that nothing is gathered if a batch is split over devices.
        features, maps, rois = features[:, None], maps[:, None], as_rois(regions)
        options = {"output_size": BINS, "group_size": BINS, "spatial_scale": 1 / STRIDE}
        options["sample_per_part"] = SAMPLES_PER_PART
        if not self.deformable_pooling:
            return psroi_pool(maps, rois, **options).mean((-3, -2))
        pool = DeformPSRoIPool(
            **options, classes=classes, trans_std=TRANS_STD, return_offsets=True, name=f"{name}_pool"
        )
        pooled, offset, _ = pool(maps, rois, features)
        self.sow("intermediates", f"{name}_offset", offset)
        return pooled.mean((-3, -2))


def propose(logits: jax.Array, boxes: jax.Array) -> Boxes:
    """The strongest boxes [cells, 4] of one image after non-maximum suppression, padded to `PROPOSALS`."""
    strength, chosen = jax.lax.top_k(logits, min(CANDIDATES, len(logits)))
    kept, valid = nms(boxes[chosen], strength, PROPOSAL_THRESHOLD, max_outputs=PROPOSALS)
    return Boxes(boxes[chosen[kept]], valid)


def as_rois(regions: Boxes) -> jax.Array:
    """Regions [batch, n, 5] for the pooling: image index 0, or -1 for padding, and the first and the last pixel."""
    image = jnp.where(regions.valid, 0, -1)[..., None]
    return jnp.concatenate([image, regions.boxes - jnp.array([0, 0, 1, 1])], -1)


@partial(jax.jit, static_argnums=0)
def detect(model: RFCN, params: dict, images: jax.Array) -> Detections:
    """The objects that a trained model detects in images [batch, height, width, 3]."""
    found = model.apply({"params": params}, images)
    scores = jax.nn.softmax(found.logits)[..., :-1] * found.regions.valid[..., None]
    boxes = decode(found.deltas * jnp.array(DELTA_SCALE), found.regions.boxes, MIN_SIDE, MAX_LOG_SCALE)
    return jax.vmap(strongest)(scores, clip(boxes, *images.shape[1:3]))


def strongest(scores: jax.Array, boxes: jax.Array) -> Detections:
    """The detections of one image: scores [n, classes] of boxes [n, 4], strongest first, after suppression."""
    strength, flat = jax.lax.top_k(scores.reshape(-1), min(DETECTIONS, scores.size))
    boxes, classes = boxes[flat // scores.shape[-1]], flat % scores.shape[-1]
    kept, valid = nms(boxes, strength, DETECTION_THRESHOLD, max_outputs=DETECTIONS, classes=classes)
    return Detections(boxes[kept], jnp.where(valid, strength[kept], 0), classes[kept])
