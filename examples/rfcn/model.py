"""R-FCN (Dai et al., arXiv 1605.06409): regions are proposed, then classified by position-sensitive maps.

Bin (i, j) of a region averages, for each class, a separate map for that bin and class. The maps vote for statements
such as "the top left of a 7 is here", and the score of a class is the mean over its bins. Deformable pooling (arXiv
1703.06211) shifts each bin.
"""

from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.digits_library.backbone import STRIDE, Backbone, locations, norm
from examples.digits_library.evaluate import Detections, strongest
from examples.library.boxes import Boxes, clip, decode, suppress
from examples.library.convolution import Conv
from jax_dcn import psroi_pool
from jax_dcn.linen import DeformPSRoIPool

SIDES = (10.0, 18.0, 32.0, 56.0)  # of anchors
CANDIDATES, PROPOSALS = 192, 64
PROPOSAL_THRESHOLD = 0.7
OBJECT_PRIOR = 0.01
DELTA_SCALE = (0.1, 0.1, 0.2, 0.2)
SAMPLES_PER_PART, TRANS_STD = 4, 0.1


class Predictions(NamedTuple):
    """The outputs of both stages.

    anchor_logits [batch, anchors]: whether an anchor contains an object; anchor_deltas [batch, anchors, 4]: the
    object's box relative to the anchor. regions: the proposals. logits [batch, regions, classes + 1]: of each class
    and, last, of no object; deltas [batch, regions, 4]: the object's box relative to the region, in units of
    `DELTA_SCALE`.
    """

    anchor_logits: jax.Array
    anchor_deltas: jax.Array
    regions: Boxes
    logits: jax.Array
    deltas: jax.Array


class RFCN(nn.Module):
    """uint8 images [batch, height, width, 3], sides divisible by 8, to `Predictions`.

    deformable_convolution: in the last stage of the backbone; deformable_pooling: of classes and boxes.
    bins: the bins of a region along each axis; width: channels of the head; widths, blocks: as in `Backbone`.
    """

    classes: int
    deformable_convolution: bool = False
    deformable_pooling: bool = False
    bins: int = 3
    width: int = 128
    widths: tuple[int, int, int, int] = Backbone.widths
    blocks: tuple[int, int, int] = Backbone.blocks

    @nn.compact
    def __call__(self, images: jax.Array, true_boxes: Boxes | None = None) -> Predictions:
        """`true_boxes`, which are passed in training, are added to the proposals."""
        batch, height, width, _ = images.shape
        operator = "deformable" if self.deformable_convolution else "plain"
        features = Backbone(operator, self.widths, self.blocks, name="backbone")(images)

        hidden = Conv(self.widths[-1], (3, 3), use_bias=False, name="rpn_conv")(features)
        hidden = nn.relu(norm("rpn_norm")(hidden))
        prior = nn.initializers.constant(jnp.log(OBJECT_PRIOR / (1 - OBJECT_PRIOR)))
        anchor_logits = Conv(len(SIDES), (1, 1), bias_init=prior, name="rpn_object")(hidden).reshape(batch, -1)
        anchor_deltas = Conv(4 * len(SIDES), (1, 1), name="rpn_box")(hidden).reshape(batch, -1, 4)
        regions = jax.vmap(partial(propose, height, width))(*jax.lax.stop_gradient((anchor_logits, anchor_deltas)))
        if true_boxes is not None:
            regions = Boxes(*(jnp.concatenate(pair, 1) for pair in zip(regions, true_boxes, strict=True)))

        features = nn.relu(norm("head_norm")(Conv(self.width, (1, 1), use_bias=False, name="head_conv")(features)))
        rois = as_rois(regions)
        logits = self._vote("class", features, rois, self.classes + 1, classes=self.classes + 1)
        deltas = self._vote("box", features, rois, 4, classes=1)
        return Predictions(anchor_logits, anchor_deltas, regions, logits, deltas)

    def _vote(self, name, features, rois, outputs, classes):
        """The mean over the bins of position-sensitive maps: [batch, regions, outputs]."""
        maps = Conv(outputs * self.bins**2, (1, 1), name=f"{name}_maps")(features)
        # Each image is a batch of its own, so that nothing is gathered if a batch is split over devices.
        features, maps = features[:, None], maps[:, None]
        options = {
            "output_size": self.bins,
            "group_size": self.bins,
            "spatial_scale": 1 / STRIDE,
            "sample_per_part": SAMPLES_PER_PART,
        }
        if not self.deformable_pooling:
            return psroi_pool(maps, rois, **options).mean((-3, -2))
        options |= {"classes": classes, "trans_std": TRANS_STD, "return_offsets": True}
        pool = DeformPSRoIPool(**options, name=f"{name}_pool")
        pooled, offset, _ = pool(maps, rois, features)
        self.sow("intermediates", f"{name}_offset", offset)
        return pooled.mean((-3, -2))


def propose(height: int, width: int, logits: jax.Array, deltas: jax.Array) -> Boxes:
    """The strongest boxes of one image [anchors] after non-maximum suppression, padded to `PROPOSALS`."""
    strength, chosen = jax.lax.top_k(logits, min(CANDIDATES, len(logits)))
    boxes = clip(decode(deltas[chosen], anchors(height, width)[chosen]), height, width)
    kept = suppress(boxes, jax.nn.sigmoid(strength), jnp.zeros_like(chosen), PROPOSAL_THRESHOLD)
    kept, best = jax.lax.top_k(kept, min(PROPOSALS, len(kept)))
    return Boxes(boxes[best], kept > 0)


def anchors(height: int, width: int) -> jax.Array:
    """Squares of all `SIDES` around each cell: [cells · sides, 4] as (x0, y0, x1, y1), cell by cell.

    >>> anchors(8, 8)[:2].tolist()
    [[-1.0, -1.0, 9.0, 9.0], [-5.0, -5.0, 13.0, 13.0]]
    """
    centres = locations(height, width)[:, None]
    half = jnp.array(SIDES)[:, None] / 2
    return jnp.concatenate([centres - half, centres + half], -1).reshape(-1, 4)


def as_rois(regions: Boxes) -> jax.Array:
    """Regions [batch, n, 5] for the pooling: image index 0, or -1 for padding, and the first and the last pixel."""
    image = jnp.where(regions.valid, 0, -1)[..., None]
    last = jnp.array([0, 0, 1, 1])
    return jnp.concatenate([image, regions.boxes - last], -1)


@partial(jax.jit, static_argnums=0)
def detect(model: RFCN, params: dict, images: jax.Array) -> Detections:
    """The objects that a trained model detects in images [batch, height, width, 3]."""
    found = model.apply({"params": params}, images)
    scores = jax.nn.softmax(found.logits)[..., :-1] * found.regions.valid[..., None]
    return jax.vmap(strongest)(scores, clip(refine(found.regions.boxes, found.deltas), *images.shape[1:3]))


def refine(regions: jax.Array, deltas: jax.Array) -> jax.Array:
    """The boxes of the objects [..., 4], which the second stage predicts from its regions."""
    return decode(deltas * jnp.array(DELTA_SCALE), regions)
