"""Batches of images and targets for training and evaluation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from PIL import Image

from examples.library import augment, loading
from examples.library.augment import Example
from examples.library.batches import filled_batches
from examples.library.coco import Dataset, open_image

from .images import LIMITS, SIDES, Preprocessor, padded, resized
from .matching import Targets


class Batch(NamedTuple):
    """Images, uint8 [batch, height, width, 3], which pixels are valid, bool [batch, height, width], and targets."""

    images: jax.Array
    mask: jax.Array
    targets: Targets


@dataclass(frozen=True)
class Loading(loading.Loading):
    """How examples are made.

    sizes: (height, width) of batches; each has a random one of them. keeps_ratio: whether images are resized with their
    ratio and padded, as for Deformable DETR. crops: whether the authors' augmentations are those of Deformable DETR and
    LW-DETR. augmented: whether they are applied. resample: PIL's filter that resizes images to the size.
    """

    sizes: tuple[tuple[int, int], ...]
    keeps_ratio: bool = False
    crops: bool = False
    augmented: bool = True
    resample: int = Image.Resampling.BILINEAR


def training_batches(dataset: Dataset, settings: Loading, steps: range) -> Iterator[Batch]:
    """The training batches of the steps in `steps`, as of `loading.training_batches`."""

    def draw(example_of):
        count = settings.batch_size
        for step in steps:
            rng = np.random.default_rng((settings.seed, step, len(settings.sizes)))
            size = settings.sizes[rng.integers(len(settings.sizes))]
            yield size, [example_of(step * count + row) for row in range(count)], (step + 1) * count

    return loading.training_batches(dataset, settings, draw, _example, batched)


def _example(settings, dataset, chosen, size):
    """An image and its objects, augmented and fitted into a size, from its number and the seed of its changes."""
    image, seed = chosen
    found, rng = load(dataset, image, settings.objects), np.random.default_rng(seed)
    if settings.augmented:
        found = augmented(found, rng, settings.crops)
    if settings.mirrors:
        found = augment.mirror(found, rng)
    return fitted(found, size, settings)


def evaluation_batches(
    dataset: Dataset, processor: Preprocessor, settings: Loading
) -> Iterator[tuple[Sequence[int], tuple[np.ndarray, np.ndarray]]]:
    """The ids of images, and their pixels and masks, as of `Batch`. processor: must give all images one size."""

    def load_processed(image):
        return processor(open_image(dataset, image))

    def stack(examples):
        images, masks = zip(*examples, strict=True)
        return np.concatenate(images), np.concatenate(masks)

    return filled_batches(dataset.images, settings.batch_size, load_processed, stack, settings.workers)


def load(dataset: Dataset, image: int, objects: int | None = None) -> Example:
    """An image and its objects, or the first of them."""
    found = dataset.objects(image, objects)
    boxes = np.array([one["corners"] for one in found], np.float32).reshape(-1, 4)
    return Example(np.asarray(open_image(dataset, image)), boxes, dataset.labels(found))


def augmented(example: Example, rng: np.random.Generator, crops: bool) -> Example:
    """An example with the augmentations of RT-DETR and D-FINE or, with `crops`, of Deformable DETR and LW-DETR.

    The former: photometric distortion, zoom out, and a crop with a least IoU. The latter: with probability 1/2, a crop
    of an image whose shorter side has 400 to 600 pixels.
    """
    if crops:
        if rng.random() < 0.5:
            height, width = example.image.shape[:2]
            factor = rng.choice([400, 500, 600]) / min(height, width)
            example = augment.resize(example, round(height * factor), round(width * factor))
            example = augment.random_crop(example, rng)
    else:
        for change in (augment.photometric_distort, augment.zoom_out, augment.iou_crop):
            example = change(example, rng)
    return example


def fitted(example: Example, size: tuple[int, int], settings: Loading) -> tuple[Example, tuple[int, int]]:
    """An example resized to (height, width), or with its ratio into the top left corner, and how much it fills."""
    shape = fitted_shape(*example.image.shape[:2], size, settings.keeps_ratio)
    found = augment.sanitise(augment.resize(example, *shape, settings.resample))
    return found._replace(image=padded(found.image, size)), shape


def fitted_shape(height: int, width: int, size: tuple[int, int], keeps_ratio: bool) -> tuple[int, int]:
    """The height and width of an image after it is fitted into a size."""
    names = LIMITS if keeps_ratio else SIDES
    fitted_height, fitted_width = resized(height, width, dict(zip(names, size, strict=True)))
    return max(fitted_height, 1), max(fitted_width, 1)


def batched(examples: Sequence[tuple[Example, tuple[int, int]]], objects: int) -> Batch:
    """Fitted examples of one size as a batch, whose boxes are (centre x, centre y, width, height) in fractions.

    Fractions are of the part of the image that is no padding.
    """
    height, width = examples[0][0].image.shape[:2]
    mask = np.zeros((len(examples), height, width), bool)
    boxes, labels = (
        np.full((len(examples), objects, 4), 0.5, np.float32),
        np.full((len(examples), objects), -1, np.int32),
    )
    for index, (example, (filled_height, filled_width)) in enumerate(examples):
        mask[index, :filled_height, :filled_width] = True
        corners = example.boxes / np.float32([filled_width, filled_height] * 2)
        count = len(corners)
        boxes[index, :count, :2] = (corners[:, :2] + corners[:, 2:]) / 2
        boxes[index, :count, 2:] = corners[:, 2:] - corners[:, :2]
        labels[index, :count] = example.labels
    return Batch(np.stack([example.image for example, _ in examples]), mask, Targets(boxes, labels))
