"""The settings of Faster R-CNN and Mask R-CNN, with the values of mmdet's configs as defaults."""

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Proposals:
    """How regions are proposed: of each level the best `per_level` anchors, of all the best `count` after NMS."""

    per_level: int = 1000
    count: int = 1000
    iou_threshold: float = 0.7


@dataclass(frozen=True)
class ObjectLimits:
    """How objects are chosen from the classes of all regions."""

    score_threshold: float = 0.05
    iou_threshold: float = 0.5
    count: int = 100


@dataclass(frozen=True)
class Selection:
    """Which boxes a stage is trained on.

    A box is positive if its IoU with an object is at least `positive`, and negative if it is below `negative` with all.
    From an IoU of `low_quality` on, an object also gets the box that overlaps it most, even if this box overlaps
    another object more. At most `count` boxes are drawn from each image, and at most the fraction `positive_fraction`
    of them are positive.
    """

    positive: float
    negative: float
    low_quality: float
    count: int
    positive_fraction: float


ANCHORS = Selection(positive=0.7, negative=0.3, low_quality=0.3, count=256, positive_fraction=0.5)
REGIONS = Selection(positive=0.5, negative=0.5, low_quality=math.inf, count=512, positive_fraction=0.25)
MASK_REGIONS = replace(REGIONS, low_quality=0.5)


@dataclass(frozen=True)
class Config:
    """A model. It is Faster R-CNN without masks, and Mask R-CNN with them.

    stage_with_dcn, offset_groups: as in `examples.resnet.ResNet`.
    """

    classes: int = 80
    masks: bool = True
    depth: int = 50
    stage_with_dcn: tuple[bool, bool, bool, bool] = (False, True, True, True)
    modulated: bool = True
    offset_groups: int = 1
    channels: int = 256
    hidden: int = 1024
    proposals: Proposals = Proposals()
    training_proposals: Proposals = Proposals(per_level=2000)
    objects: ObjectLimits = ObjectLimits()

    @property
    def regions(self) -> Selection:
        """Which regions the heads are trained on. mmdet's two models differ in it."""
        return MASK_REGIONS if self.masks else REGIONS
