"""Data sets of YOLO and of Pascal VOC, as the content of a file in COCO's format.

docs/annotations.md explains which files are read. The ids of annotations say which file and line they are from, so that
the checks of `annotations.read` name these.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

from .files import listed, read_text, shortened
from .photographs import turned_size

SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
INSIDE = ("data.yaml", "_annotations.coco.json")  # what a folder is named by
FARTHEST = 0.01  # how far a coordinate of YOLO may leave the image, as a fraction, by rounding
EDGES = ("xmin", "ymin", "xmax", "ymax")
Content = dict[str, list[dict[str, Any]]]


def find(path: Path, images: Path | None, part: str) -> tuple[Path, Path, Content | None]:
    """The file or the folder of a data set, the folder of its images and, unless it has COCO's format, its content.

    images: the folder of the images of a file in COCO's format, by default that of the file; of other data sets the
    name of a part, by default `part`. Raises OSError or ValueError, which name the file.
    """
    path = next((path / name for name in INSIDE if (path / name).is_file()), path)
    if path.suffix in (".yaml", ".yml"):
        entries, names = _yolo(path, str(images or part))
    elif path.is_dir():
        entries, names = _voc(path, images and str(images), part)
    else:
        return path, images or path.parent, None
    found = list(entries)
    if not found:
        raise ValueError(f"{path} must name images, got none whose name ends in {', '.join(sorted(SUFFIXES))}")
    folder = Path(os.path.commonpath([image.parent for image, _, _ in found]))
    content: Content = {"images": [], "categories": [], "annotations": []}
    for image, size, annotations in found:
        name = os.path.relpath(image, folder)
        content["images"].append({"id": name, "file_name": name, "width": size[0], "height": size[1]})
        content["annotations"] += [one | {"image_id": name} for one in annotations]
    content["categories"] = [{"id": number, "name": name} for number, name in names.items()]
    if not content["annotations"]:
        expected = f"; labels of {found[0][0]} would be in {_labels(found[0][0])}" if path.is_file() else ""
        raise ValueError(f"{path} must have objects, got none in {len(found)} images{expected}")
    return path, folder, content


def _yolo(path, part):
    """The images of a part of a data set of YOLO with their sizes and annotations, and the names by their numbers."""
    try:
        content = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} must be YAML: {error}") from error
    content = content if isinstance(content, dict) else {}
    names = content.get("names")
    names = dict(enumerate(names)) if isinstance(names, list) else names
    if not names or not isinstance(names, dict) or not all(str(number).isdigit() for number in names):
        raise ValueError(f"names in {path} must be a list of names or names by numbers, got {shortened(names)}")
    names = {int(number): str(names[number]) for number in sorted(names, key=int)}
    if content.get("nc", len(names)) != len(names):
        raise ValueError(f"nc in {path} must be the number of names, {len(names)}, got {shortened(content['nc'])}")
    entries = content.get(part)
    entries = [entries] if isinstance(entries, str) else entries
    if not entries or not all(isinstance(entry, str) for entry in entries):
        raise ValueError(f"{path} must have a path or a list of paths {part!r}, got {listed(list(content), most=8)}")
    images = [image for entry in entries for image in _images(_place(path, str(content.get("path") or ""), entry))]
    has_points = "kpt_shape" in content
    return ((image, *_yolo_image(image, names, has_points)) for image in images), names


def _place(path: Path, root: str, entry: str) -> Path:
    """Where an entry of a data.yaml is. Roboflow writes ../train/images for the folder train/images beside the file."""
    names = entry, entry.removeprefix("../")
    places = [folder / name for folder in (path.parent / root, Path(root), path.parent) for name in names]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise FileNotFoundError(f"{path} names {entry!r}, which must exist; it was looked for at {places[0]}")
    return found


def _images(place: Path) -> list[Path]:
    """The images in a folder and the folders in it, or those that a file lists."""
    if place.is_dir():
        found = sorted(place.rglob("*"))
    else:
        found = [place.parent / line.strip() for line in read_text(place).splitlines() if line.strip()]
    return [Path(os.path.abspath(image)) for image in found if image.suffix.lower() in SUFFIXES]


def _labels(image: Path) -> Path:
    """The labels of an image are in the folder labels in place of the last images, or beside it."""
    parts = list(image.parts)
    if "images" in parts[:-1]:
        parts[len(parts) - 2 - parts[-2::-1].index("images")] = "labels"
    return Path(*parts).with_suffix(".txt")


def _yolo_image(image, names, has_points):
    """The size of an image, and its annotations."""
    size, labels = turned_size(image), _labels(image)
    lines = read_text(labels).splitlines() if labels.is_file() else []
    return size, [
        _yolo_object(f"{labels}:{number}", line.split(), size, names, has_points)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


def _yolo_object(place, fields, size, names, has_points):
    """The annotation in a line: a class and a box, after which there may be points, or a class and a polygon."""
    try:
        category, *numbers = map(float, fields)
    except ValueError as error:
        raise ValueError(f"{place} must have only numbers: {error}") from error
    numbers = numbers[:4] if has_points else numbers
    if len(numbers) < 4 or len(numbers) % 2:
        raise ValueError(f"{place} must have a class and a box or the corners of a polygon, got {len(fields)} numbers")
    if not all(-FARTHEST <= number <= 1 + FARTHEST for number in numbers):  # nor NaN
        raise ValueError(f"{place} must have coordinates as fractions of the image, from 0 to 1, got {numbers}")
    if category not in names:
        raise ValueError(f"{place} must have a class that has a name, {listed([*map(str, names)])}, got {fields[0]}")
    found = {"id": place, "category_id": int(category)}
    points = [number * size[index % 2] for index, number in enumerate(numbers)]
    if len(numbers) == 4:
        x, y, width, height = points
        return found | {"bbox": [x - width / 2, y - height / 2, width, height]}
    (x0, x1), (y0, y1) = ((min(points[axis::2]), max(points[axis::2])) for axis in (0, 1))
    return found | {"bbox": [x0, y0, x1 - x0, y1 - y0], "segmentation": [points]}


def _voc(path, part, usual):
    """The images of a part of a data set of Pascal VOC with their sizes and annotations, and the names of all parts."""

    def first(*names):
        return next((path / name for name in names if (path / name).is_dir()), path)

    annotations, images = first("Annotations", "annotations"), first("JPEGImages", "images")
    lists, files = path / "ImageSets/Main", sorted(annotations.glob("*.xml"))
    names = sorted({name for file in files for name in map(_name, _root(file).iterfind("object")) if name})
    if not files:
        expected = "a data.yaml, an _annotations.coco.json or files .xml of Pascal VOC"
        raise FileNotFoundError(f"{path} must be a file of annotations or a folder with {expected}")
    if part or lists.is_dir():
        chosen = lists / f"{part or usual}.txt"
        if not chosen.is_file():
            parts = listed(sorted(one.stem for one in lists.glob("*.txt")))
            raise FileNotFoundError(f"{path} must have the part {part or usual!r} in ImageSets/Main, which has {parts}")
        files = [annotations / f"{line.strip()}.xml" for line in read_text(chosen).splitlines() if line.strip()]
    present = sorted(image for image in images.iterdir() if image.suffix.lower() in SUFFIXES)
    by_name = {image.stem: image for image in present}
    return (_voc_image(file, by_name, images) for file in files), dict(zip(names, names, strict=True))


def _root(file: Path) -> ElementTree.Element:
    try:
        return ElementTree.parse(file).getroot()
    except ElementTree.ParseError as error:
        raise ValueError(f"{file} must be XML: {error}") from error


def _name(one: ElementTree.Element) -> str:
    return (one.findtext("name") or "").strip()


def _voc_image(file, by_name, images):
    """The image of a file, its size and its annotations."""
    root = _root(file)
    image = by_name.get(file.stem) or images / (root.findtext("filename") or f"{file.stem}.jpg").strip()
    width, height = (_number(root.findtext(f"size/{side}")) for side in ("width", "height"))
    size = (width, height) if width > 0 and height > 0 else turned_size(image)
    return image, size, list(_voc_objects(file, root))


def _voc_objects(file, root) -> Iterator[dict[str, Any]]:
    """The annotations in a file. Pixels are counted from 1, and a box has its last one, as Detectron2 reads them."""
    for number, one in enumerate(root.iterfind("object"), 1):
        x0, y0, x1, y1 = (_number(one.findtext(f"bndbox/{edge}")) for edge in EDGES)
        name, place = _name(one), f"{file}, object {number}"
        if not name:
            raise ValueError(f"{place} must have a name")
        if not all(map(math.isfinite, (x0, y0, x1, y1))):
            raise ValueError(f"{place} must have a bndbox with the numbers {', '.join(EDGES)}")
        if x1 < x0 or y1 < y0:
            raise ValueError(f"{place} must have xmin and ymin up to xmax and ymax, got {(x0, y0, x1, y1)}")
        is_difficult = (one.findtext("difficult") or "").strip() == "1"
        box = [x0 - 1, y0 - 1, x1 - x0 + 1, y1 - y0 + 1]
        yield {"id": place, "category_id": name, "bbox": box, "iscrowd": int(is_difficult)}


def _number(text: str | None) -> float:
    """A number in a file, NaN for none."""
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan
