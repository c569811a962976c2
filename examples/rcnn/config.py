"""The settings of Faster R-CNN and Mask R-CNN, with the values of mmdet's configs as defaults."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from examples.resnet import DEVIATION, MEAN


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

    The arrays of a checkpoint say what its model is from `classes` to `hidden`, but not the following fields.

    names: of the classes; none if they are not known.
    stage_with_dcn, offset_groups: as in `examples.resnet.ResNet`.
    style: which convolution of a block has its stride: "pytorch", the 3x3 one, or "caffe", the first.
    mean, deviation: of images from 0 to 255, in the order of the channels that the network expects: BGR if `bgr`.
    divisor: of the sides of padded images.
    scale: the longer and the shorter side that images are resized to.
    anchor_scales: sides of anchors in strides; anchor_ratios: height to width.
    anchor_stds, box_stds: what the heads of anchors and of regions divide the four deltas of a box by.
    sampling_ratio: of RoIAlign; 0 takes as many samples as a bin has pixels.
    """

    names: tuple[str, ...] = ()
    classes: int = 80
    masks: bool = True
    depth: int = 50
    stage_with_dcn: tuple[bool, bool, bool, bool] = (False, True, True, True)
    modulated: bool = True
    offset_groups: int = 1
    channels: int = 256
    hidden: int = 1024
    style: str = "pytorch"
    mean: tuple[float, float, float] = MEAN
    deviation: tuple[float, float, float] = DEVIATION
    bgr: bool = False
    divisor: int = 32
    scale: tuple[int, int] = (1333, 800)
    anchor_scales: tuple[float, ...] = (8.0,)
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    anchor_stds: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    box_stds: tuple[float, float, float, float] = (0.1, 0.1, 0.2, 0.2)
    sampling_ratio: int = 0
    mask_threshold: float = 0.5
    proposals: Proposals = Proposals()
    training_proposals: Proposals = Proposals(per_level=2000)
    objects: ObjectLimits = ObjectLimits()

    @property
    def regions(self) -> Selection:
        """Which regions the heads are trained on. mmdet's two models differ in it."""
        return MASK_REGIONS if self.masks else REGIONS

    @property
    def anchors_per_cell(self) -> int:
        """How many anchors each cell of a feature map has."""
        return len(self.anchor_scales) * len(self.anchor_ratios)

    @property
    def settings(self) -> dict[str, Any]:
        """What the arrays of a checkpoint do not say, by name, such as "style" and "objects.iou_threshold"."""
        return dict(_flat(self))


CHOICES = {"style": ("pytorch", "caffe"), "divisor": (32, 64, 128)}  # the coarsest features have a stride of 32
LISTS = ("anchor_scales", "anchor_ratios")  # of any length
MAY_BE_ZERO = (
    "mean",
    "sampling_ratio",
    "mask_threshold",
    "objects.score_threshold",
    "objects.iou_threshold",
    "proposals.iou_threshold",
    "training_proposals.iou_threshold",
)
TINY = 1e-9
IMPLIED = ("names", "classes", "masks", "depth", "stage_with_dcn", "modulated", "offset_groups", "channels", "hidden")


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """A config with other `settings`, whose names are those of `Config.settings`; lists may take the place of tuples.

    >>> with_settings(Config(), {"style": "caffe", "objects.count": 300}).objects.count
    300
    """
    for name, value in settings.items():
        if name not in config.settings:
            raise ValueError(f"a setting must be one of {', '.join(config.settings)}, got {name!r}")
        config = _replaced(config, name.split("."), value, name)
    return config


def _flat(settings, prefix="") -> Iterator[tuple[str, Any]]:
    for field in fields(settings):
        name, value = prefix + field.name, getattr(settings, field.name)
        if is_dataclass(value):
            yield from _flat(value, f"{name}.")
        elif name not in IMPLIED:
            yield name, value


def _replaced(settings, path, value, name):
    first, *rest = path
    old = getattr(settings, first)
    return replace(settings, **{first: _replaced(old, rest, value, name) if rest else _checked(name, value, old)})


def _checked(name, value, old):
    """The value, if it has the type of the old one, and is no negative or senseless number."""
    value = tuple(value) if isinstance(value, list) else value
    numbers, olds = (one if isinstance(one, tuple) else (one,) for one in (value, old))
    wanted = f"like {old!r}"
    if name in CHOICES:
        fits, wanted = value in CHOICES[name], " or ".join(map(repr, CHOICES[name]))
    elif isinstance(old, bool):
        fits = isinstance(value, bool)
    else:
        same_kind = isinstance(value, tuple) == isinstance(old, tuple)
        length = max(len(numbers), 1) if name in LISTS else len(olds)
        least = 0 if name in MAY_BE_ZERO else TINY
        most = 1 if name.endswith("threshold") else math.inf
        fits = same_kind and len(numbers) == length
        fits = fits and all(_is_number(one, isinstance(olds[0], int)) and least <= one <= most for one in numbers)
    if not fits:
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
    return value


def _is_number(value, whole):
    return isinstance(value, int if whole else (int, float)) and not isinstance(value, bool) and math.isfinite(value)
