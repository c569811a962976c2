"""Images with annotations in the format of COCO, and the average precision of detections."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, islice

import numpy as np
from PIL import Image
from pycocotools import mask as rle

from examples.library import loading, precision
from examples.library.batches import filled_batches
from examples.library.coco import Dataset, fitted_size, open_image
from examples.resnet import MEAN

from .config import Config
from .detector import Detections
from .images import padded_sides, resize, resized_size
from .losses import Batch


@dataclass(frozen=True)
class Loading(loading.Loading):
    """How examples are made.

    size: the sides into which training images are fitted, turned as each image. min_scale: training images are fitted
    into a random part of the size, from this fraction of both sides to all. colour: of the padding, in RGB.
    """

    size: tuple[int, int]
    masks: bool = True
    min_scale: float = 1.0
    colour: tuple[float, ...] = MEAN


def load_image(
    dataset: Dataset, image: int, filled: tuple[int, int], size: tuple[int, int], colour: tuple[float, ...]
) -> np.ndarray:
    """An image, resized as in mmdet to fill so much of the top left corner: uint8 [height, width, 3].

    The rest has the colour of the padding, which is about 0 after normalisation.
    """
    height, width = filled
    canvas = np.empty((*size, 3), np.uint8)
    canvas[:] = np.round(colour)
    canvas[:height, :width] = resize(np.asarray(open_image(dataset, image))[None], height, width)[0]
    return canvas


def load_example(dataset: Dataset, image: int, settings: Loading, size: tuple[int, int], scale: float = 1.0) -> Batch:
    """An image, which is fitted into a size, and its objects."""
    info = dataset.annotations.imgs[image]
    part = tuple(max(int(side * scale), 1) for side in size)
    height, width = fitted_size(info["height"], info["width"], part)
    ratio = np.array([width / info["width"], height / info["height"]] * 2)
    objects = dataset.objects(image, settings.objects)
    boxes = np.array([one["corners"] for one in objects]).reshape(-1, 4) * ratio
    masks = np.zeros((len(objects), *(size if settings.masks else (0, 0))), np.uint8)
    if settings.masks:
        for mask, annotation in zip(masks, objects, strict=True):
            whole = dataset.annotations.annToMask(annotation)
            places = (np.arange(new) * old // new for new, old in zip((height, width), whole.shape, strict=True))
            mask[:height, :width] = whole[np.ix_(*places)]  # as in mmdet
    pixels = load_image(dataset, image, (height, width), size, settings.colour)
    return Batch(pixels, boxes.astype(np.float32), dataset.labels(objects), masks)


def padded(example: Batch, count: int) -> Batch:
    """An example with so many objects."""
    room = (0, count - len(example.labels))
    return Batch(
        example.images,
        np.pad(example.boxes, (room, (0, 0))),
        np.pad(example.labels, room, constant_values=-1),
        np.pad(example.masks, (room, (0, 0), (0, 0))),
    )


def _turned(dataset, image, size):
    """(height, width) with these sides, of which the longer one is the height if that of the image is, too."""
    info = dataset.annotations.imgs[image]
    return tuple(sorted(size, reverse=info["height"] > info["width"]))


def mirrored(example: Batch) -> Batch:
    """An example whose left and right are exchanged."""
    width = example.images.shape[1]
    boxes = [width, 0, width, 0] - example.boxes * [1, -1, 1, -1]
    return Batch(
        example.images[:, ::-1], boxes[:, [2, 1, 0, 3]].astype(np.float32), example.labels, example.masks[..., ::-1]
    )


def training_batches(dataset: Dataset, settings: Loading, steps: range) -> Iterator[Batch]:
    """The training batches of the steps in `steps`, as of `loading.training_batches`.

    As in mmdet, examples of upright images wait until they fill a batch, and so do the others.
    """

    def draw(example_of):
        waiting = defaultdict(list)
        for number in count():
            chosen = example_of(number)
            size = _turned(dataset, chosen[0], settings.size)
            waiting[size].append(chosen)
            if len(waiting[size]) == settings.batch_size:
                yield size, waiting.pop(size), number + 1

    def draw_steps(example_of):
        return islice(draw(example_of), steps.start, steps.stop)

    return loading.training_batches(dataset, settings, draw_steps, _example, _stacked)


def _example(settings, dataset, chosen, size):
    """An image and its objects, mirrored or not, from its number and the seed of its changes."""
    image, seed = chosen
    rng = np.random.default_rng(seed)
    scale = rng.uniform(settings.min_scale, 1) if settings.min_scale < 1 else 1.0
    found = load_example(dataset, image, settings, size, scale)
    return mirrored(found) if settings.mirrors and rng.random() < 0.5 else found


def _stacked(examples, most):
    return Batch(*map(np.stack, zip(*(padded(one, most) for one in examples), strict=True)))


def evaluation_batches(
    dataset: Dataset, settings: Loading, config: Config
) -> Iterator[tuple[Sequence[int], np.ndarray]]:
    """The ids of images, and the images, resized to the scale of a model. Upright images have batches of their own."""
    sides = padded_sides(config.scale, config.divisor)
    by_size = defaultdict(list)
    for image in dataset.images:
        by_size[_turned(dataset, image, sides)].append(image)

    def load(size, image):
        info = dataset.annotations.imgs[image]
        filled = resized_size(info["height"], info["width"], config.scale)
        return load_image(dataset, image, filled, size, settings.colour)

    for size, images in by_size.items():
        yield from filled_batches(images, settings.batch_size, partial(load, size), np.stack, settings.workers)


def results(dataset: Dataset, image: int, found: Detections, scale: tuple[int, int]) -> list[dict]:
    """The detections in one image as COCO's results, from those in the image that is resized to a model's scale."""
    info, listed = dataset.annotations.imgs[image], []
    height, width = resized_size(info["height"], info["width"], scale)
    boxes = np.minimum(found.boxes, [width, height] * 2) * ([info["width"] / width, info["height"] / height] * 2)
    for index, result in dataset.results(image, found.scores, found.labels, found.boxes):
        result["bbox"] = precision.corners_to_sides(boxes[index])
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
    """COCO's AP (IoU 0.50 to 0.95), AP50, AP75 and AP of each class, of boxes and, if asked for, of masks."""
    kinds, measure = {"box": "bbox"} | ({"mask": "segm"} if masks else {}), precision.average_precision
    scores = {name: measure(dataset.annotations, listed, kind, of_classes=True) for name, kind in kinds.items()}
    return {f"{name} {score}": value for name, found in scores.items() for score, value in found.items()}
