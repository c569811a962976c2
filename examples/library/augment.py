"""Augmentations of images with boxes, as detection transformers are trained with.

Each takes an example and a random generator, and returns an example: an RGB image, uint8 [height, width, 3], its boxes
(x0, y0, x1, y1) in pixels, float32 [n, 4], and their labels, int32 [n].
"""

from typing import NamedTuple

import numpy as np
from PIL import Image, ImageEnhance

IOU_LIMITS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, None)  # of SSD; None keeps the image
CROP_SIZES, CROP_RATIOS, CROP_TRIALS = (0.3, 1.0), (0.5, 2.0), 40
MAX_ZOOM_OUT = 4.0
MIN_SIDE = 1.0  # pixels


class Example(NamedTuple):
    """An image and its objects."""

    image: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray


def mirror(example: Example, rng: np.random.Generator) -> Example:
    """Exchanges left and right with probability 1/2."""
    if rng.random() < 0.5:
        return example
    width = example.image.shape[1]
    boxes = example.boxes.copy()
    boxes[:, [0, 2]] = width - example.boxes[:, [2, 0]]
    return example._replace(image=example.image[:, ::-1], boxes=boxes)


def photometric_distort(example: Example, rng: np.random.Generator) -> Example:
    """Changes brightness, contrast, saturation, hue, and the order of the channels, each with probability 1/2.

    The distortion of SSD (Liu et al., arXiv 1512.02325) with the ranges of torchvision's `RandomPhotometricDistort`.
    """
    image = Image.fromarray(example.image)
    changes = [(ImageEnhance.Color, 0.5, 1.5), (_TurnedHue, -0.05, 0.05)]
    changes.insert(2 * int(rng.integers(2)), (ImageEnhance.Contrast, 0.5, 1.5))
    for change, low, high in [(ImageEnhance.Brightness, 0.875, 1.125), *changes]:
        if rng.random() < 0.5:
            image = change(image).enhance(rng.uniform(low, high))
    channels = rng.permutation(3) if rng.random() < 0.5 else np.arange(3)
    return example._replace(image=np.asarray(image)[..., channels])


def zoom_out(example: Example, rng: np.random.Generator) -> Example:
    """Puts the image at a random place of a black one, which is 1 to 4 times as large, with probability 1/2."""
    if rng.random() < 0.5:
        return example
    height, width = example.image.shape[:2]
    factor = rng.uniform(1, MAX_ZOOM_OUT)
    tall, wide = int(height * factor), int(width * factor)
    top, left = (int(rng.uniform(0, most)) for most in (tall - height, wide - width))
    image = np.zeros((tall, wide, 3), np.uint8)
    image[top : top + height, left : left + width] = example.image
    return example._replace(image=image, boxes=example.boxes + np.float32([left, top, left, top]))


def iou_crop(example: Example, rng: np.random.Generator) -> Example:
    """Crops a random part in which a box has a random least IoU with it, as SSD does, with probability 0.8.

    Boxes whose centres are outside are left out; the image stays if no such part is found.
    """
    if rng.random() >= 0.8 or not len(example.boxes):
        return example
    height, width = example.image.shape[:2]
    centres = (example.boxes[:, :2] + example.boxes[:, 2:]) / 2
    while (least := IOU_LIMITS[rng.integers(len(IOU_LIMITS))]) is not None:
        for _ in range(CROP_TRIALS):
            new_width, new_height = (int(size * rng.uniform(*CROP_SIZES)) for size in (width, height))
            if not new_height or not CROP_RATIOS[0] <= new_width / new_height <= CROP_RATIOS[1]:
                continue
            left, top = int((width - new_width) * rng.random()), int((height - new_height) * rng.random())
            part = np.float32([left, top, left + new_width, top + new_height])
            inside = np.all((centres > part[:2]) & (centres < part[2:]), 1)
            if inside.any() and _iou(example.boxes[inside], part).max() >= least:
                return _cropped(example, inside, part)
    return example


def random_crop(example: Example, rng: np.random.Generator, sides: tuple[int, int] = (384, 600)) -> Example:
    """Crops a random part with sides in this range of pixels, as DETR does; boxes outside are left out."""
    height, width = example.image.shape[:2]
    new_width, new_height = (
        int(rng.integers(min(side, sides[0]), min(side, sides[1]) + 1)) for side in (width, height)
    )
    left, top = rng.integers(width - new_width + 1), rng.integers(height - new_height + 1)
    part = np.float32([left, top, left + new_width, top + new_height])
    return _cropped(example, np.ones(len(example.boxes), bool), part)


def sanitise(example: Example) -> Example:
    """Clips boxes to the image, and leaves out those with a side below 1 pixel."""
    height, width = example.image.shape[:2]
    boxes = example.boxes.clip(0, np.float32([width, height, width, height]))
    kept = np.all(boxes[:, 2:] - boxes[:, :2] >= MIN_SIDE, 1)
    return example._replace(boxes=boxes[kept], labels=example.labels[kept])


def resize(example: Example, height: int, width: int, resample: int = Image.Resampling.BILINEAR) -> Example:
    """Resizes the image with a filter of PIL, which antialiases, and its boxes."""
    image = Image.fromarray(example.image).resize((width, height), resample)
    scale = np.float32([width / example.image.shape[1], height / example.image.shape[0]] * 2)
    return example._replace(image=np.asarray(image), boxes=example.boxes * scale)


def _cropped(example, kept, part):
    left, top, right, bottom = part.astype(int)
    boxes = example.boxes[kept] - np.float32([left, top, left, top])
    return sanitise(Example(example.image[top:bottom, left:right], boxes, example.labels[kept]))


def _iou(boxes, part):
    sides = np.minimum(boxes[:, 2:], part[2:]) - np.maximum(boxes[:, :2], part[:2])
    shared = sides.clip(0).prod(1)
    return shared / ((boxes[:, 2:] - boxes[:, :2]).prod(1) + (part[2:] - part[:2]).prod() - shared)


class _TurnedHue(NamedTuple):
    image: Image.Image

    def enhance(self, turn):
        """The image with its hues turned by a part of a circle."""
        hue, saturation, value = self.image.convert("HSV").split()
        turned = hue.point(lambda hue: (hue + round(256 * turn)) % 256)
        return Image.merge("HSV", (turned, saturation, value)).convert("RGB")
