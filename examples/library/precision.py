"""COCO's average precision, by pycocotools."""

import contextlib
import io
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

OF_CLASS = " of "  # in names of scores, before the name of a class


def indexed(content: dict[str, Any]) -> COCO:
    """The images, annotations and categories of a file in COCO's format, as pycocotools needs them.

    Annotations must have ids from 1, because pycocotools takes an object with the id 0 for one that was not found.
    """
    coco = COCO()
    coco.dataset = content
    with contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()
    return coco


def with_areas(objects: list[dict[str, Any]], kind: Literal["bbox", "segm"] = "bbox") -> list[dict[str, Any]]:
    """Objects that have a box or a mask, as annotations, whose ids are 1, 2, ..."""

    def area(found):
        return float(rle.area(found["segmentation"])) if kind == "segm" else math.prod(found["bbox"][2:])

    return [found | {"id": number, "area": area(found), "iscrowd": 0} for number, found in enumerate(objects, 1)]


def corners_to_sides(box: Any) -> list[float]:
    """A box (x0, y0, x1, y1) as COCO writes it: (x0, y0, width, height)."""
    x0, y0, x1, y1 = map(float, box)
    return [x0, y0, x1 - x0, y1 - y0]


class NotFiniteError(ValueError):
    """A detection whose score or box is NaN or infinite."""


def check_finite(image: Any, scores: Iterable[float], boxes: Iterable[Iterable[float]]) -> None:
    """Raises NotFiniteError for the first detection in an image whose score or box is not finite.

    Comparisons with NaN would drop it, or make it a perfect match.
    """
    for score, box in zip(scores, boxes, strict=True):
        if not all(map(math.isfinite, (score, *box))):
            raise NotFiniteError(
                f"objects found in {image} must have finite scores and boxes, got score {float(score)} and box "
                f"{[*map(float, box)]}"
            )


class Evaluation(NamedTuple):
    """What a detector has found in validation images: COCO's results, and their scores by name."""

    results: list[dict[str, Any]]
    scores: dict[str, float]


def average_precision(
    truth: COCO,
    results: list[dict[str, Any]],
    kind: Literal["bbox", "segm"] = "bbox",
    sizes: Mapping[str, tuple[float, float]] | None = None,
    *,
    of_classes: bool = False,
) -> dict[str, float]:
    """COCO's AP (IoU 0.50 to 0.95), AP50 and AP75, and AP of each class of sizes, in [0, 1].

    results: of each detection "image_id", "category_id", "score" and "bbox" or "segmentation".
    sizes: of each class, the range of the square roots of areas. of_classes: whether there is an "AP of NAME" for each
    category, too. An average over no object is NaN. Raises NotFiniteError for the first result whose score or box is
    not finite.
    """
    for found in results:
        image = truth.imgs[found["image_id"]]
        check_finite(image.get("file_name", image["id"]), [found["score"]], [found.get("bbox", ())])
    areas = {"all": (0, math.inf)} | dict(sizes or {})
    with _evaluated(truth, results, kind) as evaluation:
        evaluation.params.areaRng = [[low**2, high**2] for low, high in areas.values()]
        evaluation.params.areaRngLbl = list(areas)
        evaluation.evaluate()
        evaluation.accumulate()
    categories = [truth.cats[category]["name"] for category in evaluation.params.catIds] if of_classes else []
    precision = evaluation.eval["precision"][..., -1]  # [IoU threshold, recall, class, area]
    mean = {label: _mean_of_known(precision[..., index]) for index, label in enumerate(areas)}
    return {
        "AP": mean["all"],
        "AP50": _mean_of_known(precision[0, ..., 0]),
        "AP75": _mean_of_known(precision[5, ..., 0]),
        **{f"AP {label}": mean[label] for label in sizes or {}},
        **{f"AP{OF_CLASS}{name}": _mean_of_known(precision[..., k, 0]) for k, name in enumerate(categories)},
    }


def mistakes(
    truth: COCO, results: list[dict[str, Any]], lowest_score: float
) -> dict[int, tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Of each image, the annotations that were missed, and the results that are wrong, by boxes with an IoU of 0.5.

    lowest_score: of the results that count. Images without a mistake are left out; those with the most are first.
    """
    with _evaluated(truth, [found for found in results if found["score"] >= lowest_score], "bbox") as evaluation:
        evaluation.params.iouThrs = np.array([0.5])
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, math.inf]], ["all"]
        evaluation.evaluate()
    found: dict[int, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = defaultdict(lambda: ([], []))
    for one in filter(None, evaluation.evalImgs):  # a class in an image
        for kind, ids, matches, ignored, of_file in (
            (0, one["gtIds"], one["gtMatches"], one["gtIgnore"][None], truth),
            (1, one["dtIds"], one["dtMatches"], one["dtIgnore"], evaluation.cocoDt),
        ):
            wrong = [of_file.anns[name] for name in np.array(ids)[(matches[0] == 0) & (ignored[0] == 0)]]
            if wrong:
                found[one["image_id"]][kind].extend(wrong)
    return dict(sorted(found.items(), key=lambda item: -sum(map(len, item[1]))))


@contextlib.contextmanager
def _evaluated(truth, results, kind):
    with contextlib.redirect_stdout(io.StringIO()):
        yield COCOeval(truth, indexed(truth.dataset | {"annotations": with_areas(results, kind)}), kind)


def _mean_of_known(values):
    known = values[values > -1]
    return float(known.mean()) if known.size else math.nan


def described(scores: Mapping[str, float]) -> str:
    """Scores in percent, without those of one class.

    >>> described({"AP": 0.4321, "AP50": 1.0, "AP of cat": 0.4321})
    'AP 43.2, AP50 100.0'
    """
    return ", ".join(f"{name} {100 * score:.1f}" for name, score in scores.items() if OF_CLASS not in name)


def described_by_class(scores: Mapping[str, float]) -> list[str]:
    """A line for each kind of scores of one class, in percent.

    >>> described_by_class({"AP": 0.5, "AP of cat": 0.75, "AP of dog": 0.25})
    ['AP of classes: cat 75.0, dog 25.0']
    """
    found = defaultdict(list)
    for name, score in scores.items():
        kind, is_of_class, label = name.partition(OF_CLASS)
        if is_of_class:
            found[kind].append(f"{label} {100 * score:.1f}")
    return [f"{kind} of classes: {', '.join(listed)}" for kind, listed in found.items()]
