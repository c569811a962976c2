"""Images with annotations in the format of COCO, at one size for all, and the average precision of detections."""

from collections.abc import Iterator

import numpy as np
from PIL import Image
from pycocotools import mask as rle

from examples.library import precision
from examples.library.coco import Dataset, fitted_size, in_turn, open_image
from examples.library.loop import ahead
from examples.resnet import MEAN

from .detector import Detections
from .losses import Batch


def load_image(dataset: Dataset, image: int, size: tuple[int, int]) -> np.ndarray:
    """An image, resized to fit into size (height, width), in its top left corner: uint8 [height, width, 3].

    The rest has the mean colour, which is 0 after normalisation.
    """
    pixels = open_image(dataset, image)
    height, width = fitted_size(pixels.height, pixels.width, size)
    canvas = np.empty((*size, 3), np.uint8)
    canvas[:] = np.round(MEAN)
    canvas[:height, :width] = pixels.resize((width, height), Image.Resampling.BILINEAR)
    return canvas


def load_example(dataset: Dataset, image: int, size: tuple[int, int], objects: int, masks: bool) -> Batch:
    """An image and its annotations, padded to a number of objects; crowds and further objects are left out."""
    info = dataset.annotations.imgs[image]
    height, width = fitted_size(info["height"], info["width"], size)
    scale = np.array([width / info["width"], height / info["height"]] * 2)
    example = Batch(
        load_image(dataset, image, size),
        np.zeros((objects, 4), np.float32),
        np.full(objects, -1, np.int32),
        np.zeros((objects, *(size if masks else (0, 0))), np.uint8),
    )
    for index, annotation in enumerate(dataset.objects(image)[:objects]):
        x, y, sides_x, sides_y = annotation["bbox"]
        example.boxes[index] = np.array([x, y, x + sides_x, y + sides_y]) * scale
        example.labels[index] = dataset.categories.index(annotation["category_id"])
        if masks:
            mask = Image.fromarray(255 * dataset.annotations.annToMask(annotation))
            resized = mask.resize((width, height), Image.Resampling.BILINEAR)
            example.masks[index, :height, :width] = np.asarray(resized) >= 128
    return example


def mirrored(example: Batch) -> Batch:
    """An example whose left and right are exchanged."""
    width = example.images.shape[1]
    boxes = np.where(example.labels[:, None] >= 0, [width, 0, width, 0] - example.boxes * [1, -1, 1, -1], 0)
    return Batch(
        example.images[:, ::-1], boxes[:, [2, 1, 0, 3]].astype(np.float32), example.labels, example.masks[..., ::-1]
    )


def training_batches(
    dataset: Dataset,
    seed: int,
    steps: range,
    batch_size: int,
    size: tuple[int, int],
    *,
    objects: int,
    masks: bool,
    mirror: bool,
) -> Iterator[Batch]:
    """The training batches of the steps in `steps`, which depend only on the seed and the step.

    They are in the order of `in_turn`. objects: how many are kept per image. mirror: whether half of the images are
    mirrored.
    """
    example_of = in_turn(dataset, seed)

    def example(number):
        image, rng = example_of(number)
        found = load_example(dataset, image, size, objects, masks)
        return mirrored(found) if mirror and rng.random() < 0.5 else found

    def batch(step):
        examples = [example(number) for number in range(step * batch_size, (step + 1) * batch_size)]
        return Batch(*(np.stack(parts) for parts in zip(*examples, strict=True)))

    return ahead(batch, steps)


def evaluation_batches(
    dataset: Dataset, batch_size: int, size: tuple[int, int]
) -> Iterator[tuple[list[int], np.ndarray]]:
    """The ids of images, and the images; the last batch is filled up with copies of its first image."""
    ids = dataset.images
    for start in range(0, len(ids), batch_size):
        chosen = ids[start : start + batch_size]
        images = [load_image(dataset, image, size) for image in chosen]
        yield chosen, np.stack(images + images[:1] * (batch_size - len(images)))


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
