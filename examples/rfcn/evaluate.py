"""COCO's average precision of detections in scenes."""

import math
from collections.abc import Iterator

import numpy as np

from examples.library import precision

from . import scenes
from .model import Detections

VALIDATION_SEED = 1
SIZE_LIMITS = {"small": (0, 20), "medium": (20, 34), "large": (34, math.inf)}


def validation_batches(images: int, batch_size: int) -> Iterator[scenes.Scenes]:
    """The first `images` validation scenes, the same for every run; the last batch may be smaller."""
    for start in range(0, images, batch_size):
        numbers = range(start, min(start + batch_size, images))
        yield scenes.make_batch("validation", VALIDATION_SEED, numbers)


def size_class(boxes: np.ndarray) -> np.ndarray:
    """Index into `SIZE_LIMITS` of boxes [..., 4], by the square root of their area in pixels.

    >>> size_class(np.array([[0, 0, 10, 10], [0, 0, 25, 30], [0, 0, 60, 40]])).tolist()
    [0, 1, 2]
    """
    side = np.sqrt(np.prod(boxes[..., 2:] - boxes[..., :2], -1))
    return np.digitize(side, [low for low, _ in SIZE_LIMITS.values()]) - 1


def average_precision(truth: list[scenes.Scenes], found: list[Detections]) -> dict[str, float]:
    """COCO's AP (IoU 0.50 to 0.95), AP50, AP75 and AP of small, medium and large objects, in [0, 1].

    An average over no object is NaN.
    """
    true_objects = _objects((batch.boxes, batch.labels >= 0, batch.labels) for batch in truth)
    content = {
        "images": [{"id": image} for image in range(sum(len(batch.images) for batch in truth))],
        "annotations": precision.with_areas(true_objects),
        "categories": [{"id": index, "name": name} for index, name in enumerate(scenes.CLASSES)],
    }
    return precision.average_precision(precision.indexed(content), _objects(found), sizes=SIZE_LIMITS)


def _objects(batches):
    """Batches of (boxes, scores, classes) in the format of COCO. A score of 0 means no object."""
    images = (image for batch in batches for image in zip(*(np.asarray(part) for part in batch), strict=True))
    return [
        {
            "image_id": image,
            "category_id": int(classes[index]),
            "bbox": precision.corners_to_sides(boxes[index]),
            "score": float(scores[index]),
        }
        for image, (boxes, scores, classes) in enumerate(images)
        for index in np.flatnonzero(scores > 0)
    ]
