"""Images with annotations in the format of COCO, at one size for all, and the average precision of detections."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image
from pycocotools import mask as rle

from examples.library import precision
from examples.library.coco import Dataset, fitted_size, in_turn, open_image
from examples.library.loop import ahead, filled_batches
from examples.resnet import MEAN

from .detector import Detections
from .losses import Batch


@dataclass(frozen=True)
class Loading:
    """How examples are made.

    size: (height, width) of all images, into which they are fitted. objects: at most so many of an image are kept.
    min_scale: training images are fitted into a random part of the size, from this fraction of both sides to all.
    mirrors: whether half of the training images are mirrored. colour: of the padding, in RGB. workers: threads.
    """

    size: tuple[int, int]
    batch_size: int
    objects: int = 50
    masks: bool = True
    min_scale: float = 1.0
    mirrors: bool = True
    colour: tuple[float, ...] = MEAN
    workers: int = 2
    seed: int = 0


def load_image(dataset: Dataset, image: int, loading: Loading, scale: float = 1.0) -> np.ndarray:
    """An image, fitted into this fraction of the size, in the top left corner: uint8 [height, width, 3].

    The rest has the colour of the padding, which is about 0 after normalisation.
    """
    pixels = open_image(dataset, image)
    height, width = fitted_size(pixels.height, pixels.width, _part(loading.size, scale))
    canvas = np.empty((*loading.size, 3), np.uint8)
    canvas[:] = np.round(loading.colour)
    canvas[:height, :width] = pixels.resize((width, height), Image.Resampling.BILINEAR)
    return canvas


def load_example(dataset: Dataset, image: int, loading: Loading, scale: float = 1.0) -> Batch:
    """An image and its annotations, padded to a number of objects; crowds and further objects are left out."""
    info = dataset.annotations.imgs[image]
    height, width = fitted_size(info["height"], info["width"], _part(loading.size, scale))
    ratio = np.array([width / info["width"], height / info["height"]] * 2)
    example = Batch(
        load_image(dataset, image, loading, scale),
        np.zeros((loading.objects, 4), np.float32),
        np.full(loading.objects, -1, np.int32),
        np.zeros((loading.objects, *(loading.size if loading.masks else (0, 0))), np.uint8),
    )
    for index, annotation in enumerate(dataset.objects(image)[: loading.objects]):
        x, y, sides_x, sides_y = annotation["bbox"]
        example.boxes[index] = np.array([x, y, x + sides_x, y + sides_y]) * ratio
        example.labels[index] = dataset.categories.index(annotation["category_id"])
        if loading.masks:
            mask = Image.fromarray(255 * dataset.annotations.annToMask(annotation))
            resized = mask.resize((width, height), Image.Resampling.BILINEAR)
            example.masks[index, :height, :width] = np.asarray(resized) >= 128
    return example


def _part(size, scale):
    return tuple(max(int(side * scale), 1) for side in size)


def mirrored(example: Batch) -> Batch:
    """An example whose left and right are exchanged."""
    width = example.images.shape[1]
    boxes = np.where(example.labels[:, None] >= 0, [width, 0, width, 0] - example.boxes * [1, -1, 1, -1], 0)
    return Batch(
        example.images[:, ::-1], boxes[:, [2, 1, 0, 3]].astype(np.float32), example.labels, example.masks[..., ::-1]
    )


def training_batches(dataset: Dataset, loading: Loading, steps: range) -> Iterator[Batch]:
    """The training batches of the steps in `steps`, in the order of `in_turn`.

    They depend only on the seed and the step.
    """
    example_of = in_turn(dataset, loading.seed)

    def example(number):
        image, rng = example_of(number)
        scale = rng.uniform(loading.min_scale, 1) if loading.min_scale < 1 else 1.0
        found = load_example(dataset, image, loading, scale)
        return mirrored(found) if loading.mirrors and rng.random() < 0.5 else found

    def batch(step):
        numbers = range(step * loading.batch_size, (step + 1) * loading.batch_size)
        return Batch(*(np.stack(parts) for parts in zip(*map(example, numbers), strict=True)))

    return ahead(batch, steps, loading.workers)


def evaluation_batches(dataset: Dataset, loading: Loading) -> Iterator[tuple[list[int], np.ndarray]]:
    """The ids of images, and the images, as `filled_batches`."""

    def load(image):
        return load_image(dataset, image, loading)

    return filled_batches(dataset.images, loading.batch_size, load, np.stack, loading.workers)


def results(dataset: Dataset, image: int, found: Detections, size: tuple[int, int]) -> list[dict]:
    """The detections in one image as COCO's results, from those in the output of `load_image`."""
    info = dataset.annotations.imgs[image]
    height, width = fitted_size(info["height"], info["width"], size)
    scale = np.array([info["width"] / width, info["height"] / height] * 2)
    listed = []
    for index in np.flatnonzero(np.asarray(found.scores) > 0):
        result = {"image_id": image, "category_id": dataset.categories[int(found.labels[index])]}
        bbox = precision.corners_to_sides(np.asarray(found.boxes[index]) * scale)
        result |= {"bbox": bbox, "score": float(found.scores[index])}
        if found.masks is not None:
            mask = Image.fromarray(np.asarray(found.masks[index], np.uint8)[:height, :width])
            result["segmentation"] = encoded(np.asarray(mask.resize((info["width"], info["height"]))))
        listed.append(result)
    return listed


def encoded(mask: np.ndarray) -> dict:
    """A mask [height, width] in COCO's run-length encoding, for a JSON file."""
    found = rle.encode(np.asfortranarray(mask, np.uint8))
    return {"size": found["size"], "counts": found["counts"].decode()}


def average_precision(dataset: Dataset, listed: list[dict], masks: bool) -> dict[str, float]:
    """COCO's AP (IoU 0.50 to 0.95), AP50 and AP75 of boxes and, if asked for, of masks."""
    kinds = {"box": "bbox"} | ({"mask": "segm"} if masks else {})
    scores = {name: precision.average_precision(dataset.annotations, listed, kind) for name, kind in kinds.items()}
    return {f"{name} {score}": value for name, found in scores.items() for score, value in found.items()}
