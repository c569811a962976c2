"""Detections and their COCO average precision."""

import contextlib
import io
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from . import scenes
from .boxes import suppress

VALIDATION_SEED = 1
MAX_DETECTIONS = 100
NMS_THRESHOLD = 0.6
SIZE_LIMITS = {"small": (0, 20), "medium": (20, 34), "large": (34, math.inf)}


class Detections(NamedTuple):
    """At most `MAX_DETECTIONS` objects per image, best first.

    boxes: [batch, MAX_DETECTIONS, 4] in pixels; scores: [batch, MAX_DETECTIONS], 0 where there is no detection;
    classes: [batch, MAX_DETECTIONS].
    """

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray


def validation_batches(images: int, batch_size: int, image_size: int = scenes.IMAGE_SIZE) -> Iterator[scenes.Scenes]:
    """The first `images` validation scenes, the same for every run; the last batch may be smaller."""
    for start in range(0, images, batch_size):
        numbers = range(start, min(start + batch_size, images))
        yield scenes.make_batch("validation", VALIDATION_SEED, numbers, image_size)


def strongest(scores: jax.Array, boxes: jax.Array) -> Detections:
    """The detections of one image: scores [n, classes] of boxes [n, 4], strongest first, after suppression."""
    strength, flat = jax.lax.top_k(scores.reshape(-1), min(MAX_DETECTIONS, scores.size))
    location, classes = flat // scores.shape[-1], flat % scores.shape[-1]
    chosen = boxes[location]
    return Detections(chosen, suppress(chosen, strength, classes, NMS_THRESHOLD), classes)


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
    with contextlib.redirect_stdout(io.StringIO()):
        ground_truth = _coco((batch.boxes, batch.labels >= 0, batch.labels) for batch in truth)
        evaluation = COCOeval(ground_truth, _coco(found), "bbox")
        areas = {"all": (0, math.inf)} | SIZE_LIMITS
        evaluation.params.areaRng = [[low**2, high**2] for low, high in areas.values()]
        evaluation.params.areaRngLbl = list(areas)
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][..., -1]  # [IoU threshold, recall, class, area]
    mean = {label: _mean_of_known(precision[..., i]) for i, label in enumerate(areas)}
    return {
        "AP": mean["all"],
        "AP50": _mean_of_known(precision[0, ..., 0]),
        "AP75": _mean_of_known(precision[5, ..., 0]),
        **{f"AP {label}": mean[label] for label in SIZE_LIMITS},
    }


def _coco(batches):
    """Batches of (boxes, scores, classes) in the format of pycocotools. A score of 0 means no object."""
    coco = COCO()
    annotations, images = [], []
    for image, (boxes, scores, classes) in enumerate(_per_image(batches)):
        images.append({"id": image})
        for i in np.flatnonzero(scores > 0):
            x0, y0, x1, y1 = boxes[i].tolist()
            annotation = {"id": len(annotations) + 1, "image_id": image, "category_id": int(classes[i]), "iscrowd": 0}
            annotation |= {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0), "score": float(scores[i])}
            annotations.append(annotation)
    categories = [{"id": i, "name": name} for i, name in enumerate(scenes.CLASSES)]
    coco.dataset = {"images": images, "annotations": annotations, "categories": categories}
    coco.createIndex()
    return coco


def _per_image(batches):
    for batch in batches:
        yield from zip(*(np.asarray(part) for part in batch), strict=True)


def _mean_of_known(values):
    known = values[values > -1]
    return float(known.mean()) if known.size else math.nan
