"""Files of annotations in the format of COCO, of which every field is checked before a training starts.

docs/annotations.md explains the table of the fields, `FIELDS`.
"""

import contextlib
import logging
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pycocotools import mask as rle

from .augment import MIN_SIDE
from .files import listed, read_json, shortened

LARGEST = 1e9  # of numbers, in pixels or square pixels
REACH = 10  # how many sides of its image a polygon may leave it; pycocotools takes memory for each pixel of its outline
REQUIRED = object()


class Field(NamedTuple):
    """What a field must be; default: of one that may be missing or null."""

    must_be: str
    fits: Callable[[Any], bool]
    default: Any = REQUIRED


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST


def _is_label(value):
    return isinstance(value, (int, str)) and not isinstance(value, bool)


ID = Field("a whole number or a text", _is_label)
TEXT = Field("a text", lambda value: isinstance(value, str) and bool(value.strip()))
SIDE = Field("a positive whole number", lambda value: _is_number(value) and value >= 1 and value % 1 == 0)
BOX = Field("a list of four numbers", lambda value: _is_list_of(_is_number, value) and len(value) == 4)
AREA = Field("a number of at least 0", lambda value: _is_number(value) and value >= 0, None)
MODE = Field("1, x and y of a corner, width and height", lambda value: value == 1, 1)
FLAG = Field("0 or 1", lambda value: isinstance(value, (int, float)) and value in (0, 1), 0)
FIELDS = {
    "images": {"id": ID, "file_name": TEXT, "width": SIDE, "height": SIDE},
    "categories": {"id": ID, "name": TEXT},
    "annotations": {
        "id": ID,
        "image_id": ID,
        "category_id": ID,
        "bbox": BOX,
        "bbox_mode": MODE,
        "area": AREA,
        "iscrowd": FLAG,
        "ignore": FLAG,
    },
}
UNIQUE = {"images": ["id"], "categories": ["id", "name"], "annotations": ["id"]}
Numbers = defaultdict[tuple[str, str], dict[int | str, int]]  # of entries, by the list, a field and its value
# Other fields of COCO's own files. They say nothing of objects, or, as a `segmentation`, only of masks.
OF_COCO = {
    "the file": {"info", "licenses", *FIELDS},
    "images": {"license", "date_captured", "coco_url", "flickr_url"},
    "categories": {"supercategory"},
    "annotations": {"segmentation"},
}
POLYGONS = "a list of polygons [x0, y0, x1, y1, ...]"
RUN_LENGTHS = "run lengths with the `size` [height, width] of the image and `counts` that add up to its pixels"


class _Entry(NamedTuple):
    """An entry of a list in a file, such as annotations[3]."""

    path: Path
    kind: str
    number: int
    value: Mapping[str, Any]

    def error(self, field: str, must_be: str) -> ValueError:
        """The error for a field of the entry that is missing or wrong."""
        name = f" (id {self.value['id']})" if _is_label(self.value.get("id")) else ""
        present = f"nothing; it has {listed(list(self.value))}"
        got = shortened(self.value[field]) if field in self.value else present
        return ValueError(f"{field} of {self.kind}[{self.number}]{name} in {self.path} must be {must_be}, got {got}")


def read(path: Path, masks: bool = False, content: Any = None) -> dict[str, list[dict[str, Any]]]:
    """The images, categories and annotations in a file, with the fields of `FIELDS`.

    Ids become 1, 2, ... in the order of the file, because pycocotools takes no texts and no 0. An annotation without an
    area gets that of its box. Each annotation gets "corners": the part of its box inside the image, (x0, y0, x1, y1),
    or None if it is not to be trained on, because it is a crowd, has `ignore`, or has a side below a pixel there, as in
    mmdet. It also gets "has_mask": whether it has a `segmentation`. Each image gets "is_background": whether it has no
    annotation. Fields that are not used are logged.

    content: what the file has, in COCO's format, if it is in another one. Its annotations are taken out of it.
    masks: whether each annotation must have a `segmentation`. As in Detectron2, malformed polygons are left out, and so
    are objects without any other. All such cases are counted and logged.

    Raises ValueError that names the file, the entry, the field, its value and what it must be.
    """
    change = _with_arrays if masks else _without_segmentation
    if content is None:
        content = read_json(path, change)
    else:
        content["annotations"] = list(map(change, content["annotations"]))
    _leave_out_group(path, content)
    unusual: Counter[str] = Counter()
    unused: Counter[str] = Counter()
    numbers: Numbers = defaultdict(dict)
    entries = partial(_entries, path, content, numbers, unused)
    images = [image | {"is_background": True} for _, image in entries("images")]
    categories = [category for _, category in entries("categories")]
    annotations = []
    seen = set()
    for entry, annotation in entries("annotations"):
        for field, kind in (("image_id", "images"), ("category_id", "categories")):
            if annotation[field] not in numbers[kind, "id"]:
                raise entry.error(field, f"an id of {kind}")
            annotation[field] = numbers[kind, "id"][annotation[field]]
        image = images[annotation["image_id"] - 1]
        image["is_background"], annotation["has_mask"] = False, bool(entry.value.get("segmentation"))
        if masks:
            annotation["segmentation"] = _segmentation(entry, annotation["iscrowd"], image, unusual)
            if not annotation["segmentation"]:
                unusual["objects without a pixel in their mask"] += 1
                continue
        box_area = max(annotation["bbox"][2], 0) * max(annotation["bbox"][3], 0)
        if annotation["area"] is None:
            annotation["area"] = box_area
        elif not (annotation["has_mask"] or math.isclose(annotation["area"], box_area, rel_tol=0.5)):
            unusual["objects without a mask whose `area` is not that of their box"] += 1
        annotation["corners"] = _corners(annotation, image, unusual)
        what = annotation["image_id"], annotation["category_id"], *annotation["bbox"]
        unusual["objects that have the box and the class of another"] += what in seen
        seen.add(what)
        attributes = entry.value.get("attributes")
        if isinstance(attributes, Mapping) and attributes.get("rotation"):
            unusual["boxes whose rotation is ignored"] += 1
        annotations.append(annotation)
    if counts := _counted(unusual):
        logging.getLogger(__name__).warning("%s has %s. docs/annotations.md says what becomes of them.", path, counts)
    unused.update(_unused("the file", content))
    if counts := _counted(unused):
        logging.getLogger(__name__).warning("%s has fields that are not used: %s.", path, counts)
    found = {"images": images, "categories": categories, "annotations": annotations}
    for of_kind in found.values():
        for number, one in enumerate(of_kind, 1):
            one["id"] = number
    return found


def read_names(path: Path) -> list[str]:
    """The names of the categories in a file, in its order. Raises ValueError as `read`."""
    content = read_json(path)
    _leave_out_group(path, content)
    entries = _entries(path, content, defaultdict(dict), Counter(), "categories")
    return [category["name"] for _, category in entries]


def _leave_out_group(path, content):
    """Deletes the category 0 of Roboflow, which only names the group of the others, if no annotation has it."""
    lists = [content.get(kind) for kind in ("categories", "annotations")] if isinstance(content, Mapping) else []
    if not all(_is_list_of(lambda one: isinstance(one, Mapping), values) for values in lists):
        return  # which is an error of its own
    for group in lists[0] if lists else ():
        members = [one for one in lists[0] if one is not group and one.get("supercategory") == group.get("name")]
        is_group = members and group.get("id") == 0 and group.get("supercategory") == "none"
        if is_group and not any(one.get("category_id") == 0 for one in lists[1]):
            text = "%s has the category %r with the id 0, which groups others and has no object. It is left out."
            logging.getLogger(__name__).warning(text, path, group["name"])
            content["categories"] = [one for one in lists[0] if one is not group]
            return


def _without_segmentation(content):
    """An annotation that only says whether it has a mask: those of large files would take most of the memory."""
    if content.get("segmentation"):
        content["segmentation"] = True
    return content


def _with_arrays(content):
    """An annotation whose polygons are arrays, which take a quarter of the memory of lists."""
    polygons = content.get("segmentation")
    if _is_list_of(_is_polygon, polygons):
        with contextlib.suppress(OverflowError):  # of whole numbers beyond those of floats
            content["segmentation"] = [array("d", polygon) for polygon in polygons]
    return content


def _entries(
    path: Path, content: Any, numbers: Numbers, unused: Counter[str], kind: str
) -> Iterator[tuple[_Entry, dict[str, Any]]]:
    """The entries of a list in a file, with the values of their fields. The list is emptied, to save memory.

    Adds their numbers, from 1, by the values of fields that must be different in all, and counts fields without use.
    """
    values = content.get(kind) if isinstance(content, Mapping) else None
    if not values or not isinstance(values, list):
        got = f"{kind}: {shortened(values)}" if values is not None else listed(list(content), most=8)
        raise ValueError(f"{path} must have a list of {kind}, as files of COCO's format do, got {got}")
    for number, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise ValueError(f"{kind}[{number}] in {path} must be an object, got {shortened(value)}")
        entry = _Entry(path, kind, number, value)
        found = _checked(entry)
        for field in UNIQUE[kind]:
            first = numbers[kind, field].setdefault(value[field], number + 1) - 1
            if first != number:
                raise entry.error(field, f"different from that of {kind}[{first}]")
        unused.update(_unused(kind, value))
        values[number] = None
        yield entry, found


def _unused(kind: str, entry: Mapping[str, Any]) -> list[str]:
    """The fields of an entry that say something and are not used, without those of COCO's own files."""
    others = entry.keys() - OF_COCO[kind] - FIELDS.get(kind, {}).keys()
    return [f"{field} of {kind}" for field in entry if field in others and entry[field] not in (None, "", [], {})]


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{what} ({count})" for what, count in counts.items() if count)


def _checked(entry: _Entry) -> dict[str, Any]:
    """The values of the fields."""
    found = {}
    for name, field in FIELDS[entry.kind].items():
        value = entry.value.get(name)
        if value is None and field.default is not REQUIRED:
            value = field.default
        elif not field.fits(value):
            raise entry.error(name, field.must_be)
        found[name] = value
    return found


def _corners(annotation, image, unusual):
    """The part of a box inside its image, or None."""
    x, y, width, height = annotation["bbox"]
    x0, y0, x1, y1 = max(x, 0), max(y, 0), min(x + width, image["width"]), min(y + height, image["height"])
    if annotation["iscrowd"]:
        unusual["crowds"] += 1
    elif annotation["ignore"]:
        unusual["objects with `ignore`"] += 1
    elif min(x1 - x0, y1 - y0) < MIN_SIDE:
        unusual["boxes with a side below a pixel inside their image"] += 1
    else:
        if max(x0 - x, y0 - y, x + width - x1, y + height - y1) > MIN_SIDE:
            unusual["boxes that leave their image by more than a pixel"] += 1
        return (x0, y0, x1, y1)
    return None


def _segmentation(entry, is_crowd, image, unusual):
    """The mask of an annotation in compressed run lengths, as pycocotools takes it; None if it has no pixel."""
    value = entry.value.get("segmentation")
    if value is None and not is_crowd:
        raise entry.error("segmentation", f"{POLYGONS}, or pass --boxes-only")
    if isinstance(value, Mapping):
        size, counts = value.get("size"), value.get("counts")
        counts = run_lengths(counts) if isinstance(counts, str) else counts
        is_whole = _is_list_of(lambda count: isinstance(count, int) and count >= 0, counts)
        if size != [image["height"], image["width"]] or not is_whole or sum(counts) != size[0] * size[1]:
            raise entry.error("segmentation", RUN_LENGTHS)
        return _with_pixels({"size": size, "counts": value["counts"]}, image, entry, unusual)
    polygons = [] if value is None else value
    if not _is_list_of(_is_polygon, polygons):
        raise entry.error("segmentation", f"{POLYGONS}, or {RUN_LENGTHS}")
    farthest = REACH * max(image["width"], image["height"])
    near = [polygon for polygon in polygons if all(abs(number) <= farthest for number in polygon)]  # none with NaN
    good = [polygon for polygon in near if len(polygon) >= 6 and len(polygon) % 2 == 0]
    if len(good) < len(polygons):
        unusual["malformed polygons"] += len(polygons) - len(good)
    return _with_pixels(good, image, entry, unusual) if good else None


def _with_pixels(mask, image, entry, unusual):
    """The mask in compressed run lengths, or None if it has no pixel."""
    if isinstance(mask, list):
        encoded = rle.merge(rle.frPyObjects(mask, image["height"], image["width"]))
    elif isinstance(mask["counts"], list):
        encoded = rle.frPyObjects(mask, image["height"], image["width"])
    else:
        encoded = mask
    if not rle.area(encoded):
        return None
    x, y, width, height = entry.value["bbox"]
    mask_x, mask_y, mask_width, mask_height = rle.toBbox(encoded)
    outside = max(x - mask_x, y - mask_y, mask_x + mask_width - x - width, mask_y + mask_height - y - height)
    unusual["masks that leave their box by more than a pixel"] += outside > MIN_SIDE
    is_small = outside <= MIN_SIDE and 2 * mask_width < width and 2 * mask_height < height
    unusual["masks of less than half the width and height of their box"] += is_small
    return encoded


def _is_list_of(fits, value):
    return isinstance(value, list) and all(map(fits, value))


def _is_polygon(value):
    return isinstance(value, array) or _is_list_of(_is_coordinate, value)


def _is_coordinate(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)  # NaN, too


def run_lengths(counts: str) -> list[int] | None:
    """The numbers in the compressed `counts` of a mask; None if it is not well-formed, which pycocotools cannot take.

    Each number has five bits a character, the lowest first, and from the fourth on it is the difference from the number
    two places before.

    >>> run_lengths("01400000")  # a diagonal of 4 x 4 pixels
    [0, 1, 4, 1, 4, 1, 4, 1]
    """
    numbers: list[int] = []
    number = shift = 0
    for code in (ord(character) - 48 for character in counts):
        if not 0 <= code < 64:
            return None
        number |= (code & 31) << shift
        shift += 5
        if not code & 32:
            number -= (code & 16) << (shift - 4)
            numbers.append(number + (numbers[-2] if len(numbers) > 2 else 0))
            number = shift = 0
    return None if shift else numbers
