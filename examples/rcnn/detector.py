"""Faster R-CNN (arXiv 1506.01497) and Mask R-CNN (arXiv 1703.06870) with a deformable ResNet, as one function."""

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Dtype

from examples.library.boxes import Boxes, clip
from examples.resnet import Layout, ResNet
from examples.resnet.model import STAGES
from jax_dcn import nms

from .config import Config, ObjectLimits
from .images import normalise, paste, resize, resized_size
from .roi_heads import FPN, RoIHead
from .rpn import RPNHead, decode, propose, take


class Detections(NamedTuple):
    """A fixed number of objects per image, best first, some of which are padding.

    boxes: [batch, n, 4] as (x0, y0, x1, y1) in pixels; scores: [batch, n], 0 for padding, and all NaN if the network
    computes a number for the image that is not finite; labels: [batch, n]; masks, of Mask R-CNN only: logits
    [batch, n, 28, 28] inside the boxes or, from `detect`, bool [batch, n, height, width].
    """

    boxes: jax.Array
    scores: jax.Array
    labels: jax.Array
    masks: jax.Array | None


class RCNN(nn.Module):
    """Faster R-CNN or Mask R-CNN, whose parameters have the names of mmdet's.

    dtype: of the features, such as bfloat16; boxes, logits, scores and losses have float32.
    """

    config: Config = Config()
    dtype: Dtype | None = None

    def setup(self):
        config = self.config
        layout = Layout(depths=STAGES[config.depth], downsample_in_bottleneck=config.style == "caffe")
        dcn = config.stage_with_dcn, config.modulated, config.offset_groups
        self.backbone = ResNet(layout, *dcn, dtype=self.dtype)
        self.neck = FPN(config.channels, self.dtype)
        self.rpn_head = RPNHead(config, self.dtype)
        self.roi_head = RoIHead(config, self.dtype)

    def __call__(self, images: jax.Array) -> Detections:
        """The objects in RGB images [batch, height, width, 3] of numbers from 0 to 255, resized for the network."""
        height, width = images.shape[1:3]
        features = self.features(images)
        predictions = self.rpn_head(features)
        regions, _ = propose(predictions, height, width, self.config.proposals)
        found = self.find(features, regions, height, width)
        return with_nan(found, *predictions.logits, *predictions.deltas)

    def features(self, images: jax.Array) -> list[jax.Array]:
        """The feature pyramid of images as `__call__` takes them."""
        return self.neck(self.backbone(normalise(images, self.config)))

    def find(self, features: list[jax.Array], regions: Boxes, height: int, width: int) -> Detections:
        """The objects in regions of images, whose height and width without padding are given."""
        logits, deltas = self.roi_head.classify(features, regions)
        boxes = clip(decode(deltas * jnp.array(self.config.box_stds), regions.boxes[:, :, None]), height, width)
        found = choose(jax.nn.softmax(logits), boxes, regions.valid, self.config.objects)
        if not self.config.masks:
            return with_nan(found, logits, deltas)
        masks = self.roi_head.segment(features, Boxes(found.boxes, found.scores > 0), found.labels)
        return with_nan(found._replace(masks=masks), logits, deltas, masks)


def choose(scores: jax.Array, boxes: jax.Array, valid: jax.Array, settings: ObjectLimits) -> Detections:
    """The best objects after non-maximum suppression in each class.

    scores [batch, n, classes + 1], boxes [batch, n, classes, 4], valid [batch, n].
    """
    batch, count, classes = boxes.shape[:3]
    scores = scores[..., :classes]
    scores = jnp.where(valid[..., None] & (scores > settings.score_threshold), scores, -jnp.inf).reshape(batch, -1)
    labels = jnp.broadcast_to(jnp.tile(jnp.arange(classes), count), scores.shape)
    boxes = boxes.reshape(batch, -1, 4)
    kept, valid = nms(boxes, scores, settings.iou_threshold, max_outputs=settings.count, classes=labels)
    return Detections(take(boxes, kept), jnp.where(valid, take(scores, kept), 0), take(labels, kept), None)


def with_nan(found: Detections, *parts: jax.Array) -> Detections:
    """Detections whose scores are NaN in the images for which a part [batch, ...] has numbers that are not finite.

    Comparisons with such numbers drop objects. 0 times such a number is NaN.
    """
    zeros = jnp.stack([(0 * part).sum(tuple(range(1, part.ndim))) for part in parts]).sum(0)
    return found._replace(scores=found.scores + zeros[:, None])


@partial(jax.jit, static_argnames=("model", "scale"))
def detect(
    model: RCNN, variables: dict[str, Any], images: jax.Array, scale: tuple[int, int] | None = None
) -> Detections:
    """The objects in RGB images, uint8 [batch, height, width, 3], in pixels of these images.

    scale: the longer and the shorter side that images are resized to, which keep their ratio; by default, that of the
    model.
    """
    height, width = images.shape[1:3]
    resized_height, resized_width = resized_size(height, width, scale or model.config.scale)
    found = model.apply(variables, resize(images, resized_height, resized_width))
    ratio = jnp.array([resized_width / width, resized_height / height] * 2)
    return in_image(found._replace(boxes=found.boxes / ratio), height, width, model.config.mask_threshold)


def in_image(found: Detections, height: int, width: int, threshold: float = 0.5) -> Detections:
    """Detections whose boxes are in pixels of an image, with masks of this image in place of mask logits.

    threshold: the least probability of a pixel of a mask.
    """
    if found.masks is None:
        return found

    def pasted(of_images):
        masks, boxes = of_images
        return paste(jax.nn.sigmoid(masks), boxes, height, width) >= threshold

    by_object = (jnp.moveaxis(part, 1, 0) for part in (found.masks, found.boxes))
    masks = jnp.moveaxis(jax.lax.map(pasted, tuple(by_object)), 0, 1)
    return found._replace(masks=masks & (found.scores > 0)[..., None, None])
