"""Images with annotations."""

import logging
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from pycocotools.coco import COCO

from . import classes, data_sets, precision
from .annotations import read as read_annotations
from .files import digest, digest_of_json, listed
from .photographs import DamagedError, opened


class Dataset(NamedTuple):
    """Annotations, their file and the folder of their images, the names of a model's classes, and the category of each.

    A category is None if the annotations do not have the class.
    """

    annotations: COCO
    path: Path
    folder: Path
    names: list[str]
    categories: list[int | None]

    @property
    def images(self) -> list[int]:
        """The numbers of all images."""
        return sorted(self.annotations.getImgIds())

    @property
    def images_with_objects(self) -> list[int]:
        """The images that have an object to train on."""
        return [image for image in self.images if self.objects(image)]

    @property
    def background_images(self) -> list[int]:
        """The images without annotations."""
        return [image for image in self.images if self.annotations.imgs[image]["is_background"]]

    @property
    def counts(self) -> list[int]:
        """How many objects to train on each image has."""
        return [len(self.objects(image)) for image in self.images]

    @property
    def digest(self) -> str:
        """That of the file of the annotations or, of other formats than COCO's, of what was read."""
        if self.path.suffix == ".json":
            return digest(self.path)
        found = self.annotations
        return digest_of_json([found.imgs, found.anns, found.cats], default=repr)

    @property
    def files(self) -> set[str]:
        """The whole paths of all images. Only folders and links are resolved, because that takes long."""

        @cache
        def resolved(parent):
            return os.path.realpath(parent), {entry.name for entry in os.scandir(parent) if entry.is_symlink()}

        def whole(path):
            parent, name = os.path.split(path)
            folder, links = resolved(parent)
            return os.path.realpath(path) if name in links else os.path.join(folder, name)

        return {whole(os.path.join(self.folder, one["file_name"])) for one in self.annotations.imgs.values()}

    def objects(self, image: int, most: int | None = None) -> list[dict[str, Any]]:
        """The annotations of an image to train on, which have "corners", or the first of them."""
        return [one for one in self.annotations.imgToAnns.get(image, []) if one["corners"]][:most]

    def part(self, images: Iterable[int]) -> "Dataset":
        """What `open_image`, `objects` and masks need of these images, which other processes get."""
        part = COCO()
        part.imgs = {image: self.annotations.imgs[image] for image in images}
        part.imgToAnns = {image: self.annotations.imgToAnns.get(image, []) for image in part.imgs}
        return self._replace(annotations=part)

    def labels(self, objects: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """The classes of objects, int32 [n]."""
        return np.array([self.categories.index(one["category_id"]) for one in objects], np.int32)

    def results(self, image: int, scores: Any, labels: Any, boxes: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        """The number, and the result in COCO's format, of each object that was found in an image, with a score above 0,
        of a class that the annotations have. Raises NotFiniteError for an object of whatever class.

        scores [n], labels [n], and boxes [n, 4] as (x0, y0, x1, y1) in pixels of the image.
        """
        precision.check_finite(self.annotations.imgs[image]["file_name"], scores, boxes)
        for number, (score, label, box) in enumerate(zip(scores, labels, boxes, strict=True)):
            category = self.categories[int(label)]
            if score > 0 and category is not None:
                found = {"image_id": image, "category_id": category, "score": float(score)}
                yield number, found | {"bbox": precision.corners_to_sides(box)}

    def with_classes(self, names: Sequence[str]) -> "Dataset":
        """The data for a model with these classes, which are matched by their names.

        Classes whose names differ from those of the model are logged. Raises ValueError if the annotations have objects
        of other classes.
        """
        places = classes.places(self.names, names)
        used = {one["category_id"] for one in self.annotations.anns.values()}
        categories: list[int | None] = [None] * len(names)
        for name, place, category in zip(self.names, places, self.categories, strict=True):
            if place is not None:
                categories[place] = category
            elif category in used:
                raise ValueError(
                    f"{self.path} must have objects of the model's classes, {listed(names)}, but has some of the class "
                    f"{name!r}"
                )
        matched = [(name, names[place]) for name, place in zip(self.names, places, strict=True) if place is not None]
        if differ := ", ".join(f"{name!r} is {match!r}" for name, match in matched if name != match):
            logging.getLogger(__name__).warning("Classes of %s with another name in the model: %s", self.path, differ)
        return self._replace(names=list(names), categories=categories)


def read(annotations: Path, images: Path | None = None, masks: bool = False, part: str = "train") -> Dataset:
    """Reads a JSON file such as COCO's instances_train2017.json, or a data set of YOLO or Pascal VOC, as
    `annotations.read`, and looks for the images.

    The classes are the categories in the order of the file, as in mmdet; those of Pascal VOC are in alphabetical order.
    images, part: as of `data_sets.find`. Raises FileNotFoundError if images are missing.
    """
    annotations, folder, content = data_sets.find(annotations, images, part)
    content = read_annotations(annotations, masks, content)
    present = {entry.name for entry in os.scandir(folder) if entry.is_file()} if folder.is_dir() else set()
    names = [image["file_name"] for image in content["images"]]
    missing = [name for name in names if name not in present and not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder} must have the images of {annotations}, but lacks {listed(missing)}{_similar(missing, folder)}"
        )
    paths = (os.path.normpath(os.path.join(folder, name)) for name in names)
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise ValueError(f"{annotations} must have each image once, but has {listed(twice)} several times")
    categories = content["categories"]
    ids = [one["id"] for one in categories]
    return Dataset(precision.indexed(content), annotations, folder, [one["name"] for one in categories], ids)


def _similar(missing, folder):
    """A hint, if files have the missing names but for capitals, separators, or the form of letters with accents."""

    def plain(name):
        return unicodedata.normalize("NFC", str(name)).replace("\\", "/").casefold()

    files = {plain(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    by_name = {plain(path.name): path for path in files.values()}
    found = (files.get(plain(name)) or by_name.get(plain(name).rpartition("/")[2]) for name in missing)
    return next((f"; there is {str(path)!r}" for path in found if path), "")


def fitted_size(height: int, width: int, size: tuple[int, int]) -> tuple[int, int]:
    """The size of an image after it is resized, with the same ratio, to fit into size (height, width).

    >>> fitted_size(480, 640, (96, 96)), fitted_size(10, 3000, (96, 96))
    ((72, 96), (1, 96))
    """
    factor = min(size[0] / height, size[1] / width)
    return min(size[0], max(round(height * factor), 1)), min(size[1], max(round(width * factor), 1))


def open_image(dataset: Dataset, image: int) -> Image.Image:
    """An image, as by `opened`. Its size must be that in the annotations."""
    info = dataset.annotations.imgs[image]
    path = dataset.folder / info["file_name"]
    pixels = opened(path)
    if pixels.size != (info["width"], info["height"]):
        raise DamagedError(
            f"{path} must have the width and height {info['width']} x {info['height']} of its annotations, got "
            f"{pixels.width} x {pixels.height}"
        )
    return pixels
