"""Images with annotations in the format of COCO: read, and checked before a training starts."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps
from pycocotools.coco import COCO

from . import precision

SHOWN = 5  # of several mistakes


class ImageError(ValueError):
    """An image file that cannot be used."""


class Dataset(NamedTuple):
    """Annotations, the folder of their images, and the ids of the categories in the order of a model's classes."""

    annotations: COCO
    folder: Path
    categories: list[int]

    @property
    def names(self) -> list[str]:
        """The names of a model's classes."""
        return [category["name"] for category in self.annotations.loadCats(self.categories)]

    @property
    def images(self) -> list[int]:
        """The ids of all images."""
        return sorted(self.annotations.getImgIds())

    @property
    def images_with_objects(self) -> list[int]:
        """The ids of the images that have objects; raises ValueError if there are none."""
        found = [image for image in self.images if self.objects(image)]
        if not found:
            raise ValueError(f"the annotations of {self.folder} must have an object that is no crowd and has an area")
        return found

    def objects(self, image: int) -> list[dict[str, Any]]:
        """The annotations of an image, without crowds and boxes of no area."""
        found = self.annotations.loadAnns(self.annotations.getAnnIds([image], iscrowd=False))
        return [one for one in found if min(one["bbox"][2:]) > 0]


def read(annotations: Path, folder: Path, masks: bool = False) -> Dataset:
    """Reads a JSON file such as COCO's instances_train2017.json.

    Annotations may lack `iscrowd`, which is then 0, and `area`, which is then that of the box. masks: whether each must
    have a `segmentation`.

    Raises ValueError that names the file and what is wrong: if it is no such file, or annotations do not fit the images
    and categories; FileNotFoundError if images are missing.
    """
    content = read_json(annotations)
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not content.get(key):
            raise ValueError(f"{annotations} must have {key}, as files of COCO's format do")
    _check_keys(annotations, content)
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    names = [image["file_name"] for image in content["images"]]
    missing = [name for name in names if name not in present and not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} must have the images of {annotations}, but lacks {_some(missing)}")
    for annotation in content["annotations"]:
        width, height = annotation["bbox"][2:]
        annotation.setdefault("iscrowd", 0)
        annotation.setdefault("area", width * height)
        if masks and not annotation["iscrowd"] and not annotation.get("segmentation"):
            raise ValueError(
                f"annotation {annotation['id']} of {annotations} must have a segmentation, or pass --boxes-only"
            )
    found = precision.indexed(content)
    return Dataset(found, folder, sorted(found.getCatIds()))


def read_json(path: Path) -> Any:
    """What a JSON file contains. Raises ValueError, which names the file, if it is none."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} must be JSON: {error}") from error


def check_validation(dataset: Dataset, validation: Dataset) -> None:
    """Raises ValueError if validation images have other categories than those that a model is trained on."""
    categories, others = (dict(zip(one.categories, one.names, strict=True)) for one in (dataset, validation))
    if categories != others:
        raise ValueError(
            f"the validation annotations must have the categories of the others, {categories}, got {others}"
        )


def in_turn(dataset: Dataset, seed: int) -> Callable[[int], tuple[int, np.random.Generator]]:
    """A function from the number of a training example to its image, and to a generator for its augmentations.

    Each epoch goes through the images that have objects, in an order of its own, which follows from the seed.
    """
    images = np.array(dataset.images_with_objects)

    @lru_cache(2)
    def order(epoch):
        return np.random.default_rng((seed, epoch)).permutation(len(images))

    def example(number):
        epoch, place = divmod(number, len(images))
        return int(images[order(epoch)[place]]), np.random.default_rng((seed, epoch, place))

    return example


def fitted_size(height: int, width: int, size: tuple[int, int]) -> tuple[int, int]:
    """The size of an image after it is resized, with the same ratio, to fit into size (height, width).

    >>> fitted_size(480, 640, (96, 96))
    (72, 96)
    """
    factor = min(size[0] / height, size[1] / width)
    return min(size[0], round(height * factor)), min(size[1], round(width * factor))


def open_image(dataset: Dataset, image: int) -> Image.Image:
    """An image in RGB, as it is to be seen: turned as its EXIF data says.

    Its size must be that in the annotations. Of 16 bits, the 8 highest are kept.
    """
    info = dataset.annotations.imgs[image]
    path = dataset.folder / info["file_name"]
    pixels = opened(path)
    if pixels.size != (info["width"], info["height"]):
        raise ImageError(
            f"{path} must have the width and height {info['width']} x {info['height']} of its annotations, got "
            f"{pixels.width} x {pixels.height}"
        )
    return pixels


def opened(path: Path) -> Image.Image:
    """The image in a file, in RGB. Raises ImageError, which names the file, if it is none."""
    try:
        return rgb(Image.open(path))
    except OSError as error:
        raise ImageError(f"{path} must be an image: {error}") from error


def rgb(image: Image.Image) -> Image.Image:
    """An image of any mode in RGB, turned as its EXIF data says."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    return image.convert("RGB")


def _check_keys(path: Path, content: Mapping[str, Any]) -> None:
    """Raises ValueError for images, categories and annotations that lack something or refer to nothing."""
    known = {}
    for kind, keys in {
        "images": ("id", "file_name", "width", "height"),
        "categories": ("id", "name"),
        "annotations": ("id", "image_id", "category_id", "bbox"),
    }.items():
        for number, item in enumerate(content[kind]):
            lacking = [key for key in keys if not isinstance(item, dict) or key not in item]
            if lacking:
                raise ValueError(f"{kind}[{number}] of {path} must have {lacking[0]}")
        ids = [item["id"] for item in content[kind]]
        known[kind] = set(ids)
        if len(known[kind]) < len(ids):
            twice = next(one for one in ids if ids.count(one) > 1)
            raise ValueError(f"{kind} of {path} must have ids of their own, got {twice} twice")
    for annotation in content["annotations"]:
        for key, kind in (("image_id", "images"), ("category_id", "categories")):
            if annotation[key] not in known[kind]:
                raise ValueError(
                    f"annotation {annotation['id']} of {path} must have {'an' if key[0] == 'i' else 'a'} {key} that is "
                    f"in {kind}, got {annotation[key]}"
                )
        box = annotation["bbox"]
        numbers = isinstance(box, list) and all(isinstance(side, (int, float)) for side in box)
        if not (numbers and len(box) == 4 and all(map(math.isfinite, box))):
            raise ValueError(f"annotation {annotation['id']} of {path} must have a bbox of four numbers, got {box}")


def _some(listed: Iterable[Any]) -> str:
    listed = list(listed)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(map(str, listed[:SHOWN])) + more
