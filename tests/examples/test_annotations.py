"""Annotations in the format of COCO: what is accepted, what is left out, and what is refused."""

import argparse
import itertools
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from pycocotools import mask as rle

from examples.detr import data as detr
from examples.detr.train import check_counts, print_small_objects
from examples.library import precision
from examples.library.annotations import FIELDS, REQUIRED, read_names, run_lengths
from examples.library.coco import read
from examples.library.options import read_data
from examples.library.photographs import ImageError
from examples.library.plots import draw_mistakes
from examples.rcnn import coco as rcnn

pytestmark = pytest.mark.platforms("cpu")

SQUARE = [2, 2, 8, 2, 8, 8, 2, 8]
CAT = {"id": 3, "name": "cat"}


@pytest.fixture
def folder(tmp_path):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (20, 10)).save(tmp_path / name)
    return tmp_path


def content(**annotation):
    """Two images with an object each, the second of which has other fields."""
    image, one = {"width": 20, "height": 10}, {"category_id": 3, "bbox": [1, 2, 8, 6], "segmentation": [SQUARE]}
    return {
        "images": [image | {"id": 5, "file_name": "a.png"}, image | {"id": 1, "file_name": "b.png"}],
        "categories": [CAT],
        "annotations": [one | {"id": 7, "image_id": 5}, one | {"id": 8, "image_id": 1} | annotation],
    }


def written(folder, annotations):
    text = annotations if isinstance(annotations, str) else json.dumps(annotations)
    (folder / "annotations.json").write_text(text)
    return folder / "annotations.json", folder


WRONG = {
    "id": [None, 1.5, True, [1]],
    "image_id": [None, "5", 6],
    "category_id": [None, "3", 4],
    "file_name": [None, "", 3],
    "name": [None, "", " ", 3],
    "width": [None, "20", 0, 20.5, True, float("nan")],
    "height": [None, "10", -1],
    "bbox": [None, [1, 2, 3], [1, 2, 3, "4"], [1, 2, float("nan"), 4], [1, 2, 3, 10**400], {"x": 1}, [[1, 2, 3, 4]]],
    "bbox_mode": [0, "1", 4],
    "area": ["12", -1, float("inf"), [12]],
    "iscrowd": ["0", 2, [0], "false"],
    "ignore": ["1", -1],
}


@pytest.mark.parametrize("kind, field", [(kind, field) for kind, fields in FIELDS.items() for field in fields])
def test_each_field(kind, field, folder):
    """Wrong values are refused with the entry and the value, and only what has a default may be missing."""
    for wrong in WRONG[field]:
        made = content()
        made[kind][-1] = made[kind][-1] | {field: wrong}
        with pytest.raises(ValueError, match=rf"{field} of {kind}\[\d\].* in .*annotations.json must be .*, got "):
            read(*written(folder, made))
    made = content()
    made[kind][-1] = {name: value for name, value in made[kind][-1].items() if name != field}
    if FIELDS[kind][field].default is REQUIRED:
        with pytest.raises(ValueError, match=rf"{field} of {kind}\[\d\].* must be .*, got nothing"):
            read(*written(folder, made))
    else:
        assert len(read(*written(folder, made)).objects(2)) == 1


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ("{", "annotations.json must be JSON"),
        ("[]", "annotations.json must have a list of images, as files of COCO's format do, got nothing"),
        ('{"shapes": [], "imagePath": "a.png"}', "must have a list of images, .*, got 'shapes', 'imagePath'"),
        (content() | {"annotations": []}, r"must have a list of annotations, .* got annotations: \[\]"),
        (content() | {"images": "a.png"}, "must have a list of images, .*, got images: 'a.png'"),
        (content() | {"annotations": [3]}, r"annotations\[0\] in .* must be an object, got 3"),
        (content(id=7), r"id of annotations\[1\] \(id 7\) .* must be different from that of annotations\[0\], got 7"),
        (content() | {"categories": [CAT, CAT | {"id": 4}]}, r"name of categories\[1\] .* must be different from that"),
        (content() | {"annotations": [{"image_id": 5, "info": []}]}, "got nothing; it has 'image_id', 'info'$"),
        (content() | {"images": content()["images"][:1]}, r"image_id of annotations\[1\] .* must be an id of images"),
    ],
)
def test_annotations_that_do_not_fit(annotations, message, folder):
    with pytest.raises(ValueError, match=message):
        read(*written(folder, annotations))


def test_images_that_occur_twice(folder):
    made = content()
    for name in ("a.png", "./a.png", str(folder / "a.png")):
        made["images"][1]["file_name"] = name
        with pytest.raises(ValueError, match=r"must have each image once, but has '.*a.png' several times"):
            read(*written(folder, made))


def test_missing_images(folder):
    (folder / "b.png").unlink()
    (folder / "b.png").mkdir()
    with pytest.raises(FileNotFoundError, match=r"must have the images of .*, but lacks 'b.png'$"):
        read(*written(folder, content()))


@pytest.mark.parametrize(
    ("name", "file"),
    [("B.JPG", "b.jpg"), ("images\\\\b.jpg", "images/b.jpg"), ("https://host/b.jpg", "b.jpg"), ("\u00e4", "a\u0308")],
)
def test_a_missing_image_of_which_there_is_a_similar_one(name, file, folder):
    (folder / file).parent.mkdir(exist_ok=True)
    Image.new("RGB", (20, 10)).save(folder / file, "png")
    made = content()
    made["images"][1]["file_name"] = name
    with pytest.raises(FileNotFoundError, match=rf"but lacks '.*'; there is '{re.escape(str(folder / file))}'$"):
        read(*written(folder, made))


@pytest.mark.parametrize("ids", [(0, 1), (1, 0), ("0001", "x"), (7, "7"), (2**70, 2**70 + 1), (-1, 10**18)])
def test_ids_are_labels(ids, folder):
    """Detections that equal the truth have an average precision of 1, whatever ids a file has."""
    made = content()
    for one, label in zip(made["images"], ids, strict=True):
        one["id"] = label
    for one, label in zip(made["annotations"], ids, strict=True):
        one |= {"id": label, "image_id": label, "category_id": ids[0]}
    made["categories"] = [CAT | {"id": ids[0]}]
    dataset = read(*written(folder, made))
    named = ("image_id", "category_id", "bbox")
    found = [{"score": 0.9, **{name: one[name] for name in named}} for one in dataset.annotations.anns.values()]
    assert precision.average_precision(dataset.annotations, found)["AP"] == 1


def test_mistakes(folder):
    """Neither crowds nor results with a low score count. The images with most mistakes are first, and are drawn."""
    made = content()
    first = made["annotations"][0]
    made["annotations"] = [
        first | {"id": number, "image_id": image, "bbox": box, "iscrowd": crowd}
        for number, (image, box, crowd) in enumerate(
            [(5, [2, 2, 6, 6], 0), (1, [2, 2, 6, 6], 0), (1, [10, 2, 6, 6], 0), (1, [0, 0, 20, 10], 1)]
        )
    ]
    dataset = read(*written(folder, made))
    kept = {"category_id": dataset.categories[0]}
    found = [
        kept | {"image_id": image, "bbox": box, "score": score}
        for image, box, score in [
            (1, [2, 2, 6, 5], 0.9),
            (1, [12, 2, 6, 5], 0.3),
            (1, [12, 2, 6, 5], 0.5),
            (2, [10, 3, 6, 6], 0.4),
        ]
    ]
    mistakes = precision.mistakes(dataset.annotations, found, 0.4)
    assert {image: [[one["bbox"] for one in part] for part in parts] for image, parts in mistakes.items()} == {
        1: [[], [[12, 2, 6, 5]]],
        2: [[[2, 2, 6, 6]], []],
    }
    found.append(kept | {"image_id": 2, "bbox": [0, 0, 2, 2], "score": 0.5})  # in the crowd
    assert precision.mistakes(dataset.annotations, found, 0.4) == mistakes
    picture = folder / "mistakes.png"
    draw_mistakes(picture, dataset, found)
    assert picture.exists()
    objects = [one for one in dataset.annotations.anns.values() if not one["iscrowd"]]
    right = [kept | {"image_id": one["image_id"], "bbox": one["bbox"], "score": 1.0} for one in objects]
    draw_mistakes(picture, dataset, right)
    assert not picture.exists()


def test_boxes_that_leave_the_image(folder):
    for box, expected in {
        (-2, 2, 4, 3): [[0, 2, 2, 5]],
        (15, 2, 60, 3): [[15, 2, 20, 5]],
        (-50, -50, 300, 300): [[0, 0, 20, 10]],
        (30, 2, 4, 3): [],
        (2, 2, 0.4, 3): [],
        (2, 2, -3, 3): [],
    }.items():
        dataset = read(*written(folder, content(bbox=box)))
        assert_array_equal(detr.load(dataset, 2).boxes.reshape(-1, 4), np.reshape(expected, (-1, 4)))
        example = rcnn.load_example(dataset, 2, rcnn.Loading((10, 20), batch_size=1, masks=False), (10, 20))
        assert_array_equal(example.boxes, np.reshape(expected, (-1, 4)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"iscrowd": 1}, "crowds (1)"),
        ({"image_id": 5}, "objects that have the box and the class of another (1)"),
        ({"ignore": 1}, "objects with `ignore` (1)"),
        ({"bbox": [2, 2, 0, 3]}, "boxes with a side below a pixel inside their image (1)"),
        ({"attributes": {"rotation": 45.0}}, "boxes whose rotation is ignored (1)"),
        ({"area": 20, "segmentation": []}, "objects without a mask whose `area` is not that of their box (1)"),
        ({"area": 30, "segmentation": []}, ""),
        ({"area": 20}, ""),
        ({"bbox": [2, 2, 30, 3]}, "boxes that leave their image by more than a pixel (1)"),
        ({}, ""),
    ],
)
def test_what_is_unusual_is_said(change, said, folder, caplog):
    dataset = read(*written(folder, content(**change)))
    is_left_out = {"iscrowd", "ignore", "image_id"} & change.keys() or "below" in said
    assert dataset.images_with_objects == ([1] if is_left_out else [1, 2])
    assert dataset.background_images == [2] * ("image_id" in change)
    assert caplog.messages[:1] == (
        [f"{dataset.path} has {said}. docs/annotations.md says what becomes of them."] if said else []
    )


def test_fields_that_are_not_used(folder, caplog):
    """What they say is not known, so they are named, unless they say nothing or are known to have no effect."""
    made = content(score=0.3, valid=False, attributes={}, caption="", segmentation=[SQUARE])
    made |= {"info": {"year": 2026}, "deleted": [3]}
    made["images"][0] |= {"neg_category_ids": [3], "license": 4}
    made["images"][1] |= {"neg_category_ids": [], "coco_url": "http"}
    made["categories"] = [CAT | {"supercategory": "animal"}]
    dataset = read(*written(folder, made))
    assert caplog.messages == [
        f"{dataset.path} has fields that are not used: neg_category_ids of images (1), score of annotations (1), "
        "valid of annotations (1), deleted of the file (1)."
    ]


NAN = float("nan")


@pytest.mark.parametrize(
    ("segmentation", "polygons"),
    [
        ([SQUARE], 1),
        ([[2, 2, 8, 8], SQUARE], 1),
        ([[2, 2, 8, 8]], 0),
        ([[2, 2]], 0),
        ([[]], 0),
        ([], 0),
        ([[*SQUARE, 3]], 0),
        ([[NAN, *SQUARE[1:]]], 0),
        ([[1e9, *SQUARE[1:]], SQUARE], 1),
        ([[0.1, 0.1, 0.4, 0.1, 0.4, 0.4, 0.1, 0.4]], 0),
        ([[30, 2, 38, 2, 38, 8, 30, 8]], 0),
        ({"size": [10, 20], "counts": [200]}, 0),
        ({"size": [10, 20], "counts": [100, 0, 100]}, 0),
    ],
)
def test_polygons(segmentation, polygons, folder, caplog):
    """A malformed polygon is left out, and an object that has no other, too, as in Detectron2."""
    dataset = read(*written(folder, content(segmentation=segmentation)), masks=True)
    objects = dataset.objects(2)
    assert len(objects) == bool(polygons) == len(dataset.annotations.anns) - 1
    assert all(rle.area(one["segmentation"]) == 36 for one in objects)
    assert ("objects without a pixel in their mask (1)" in str(caplog.messages)) == (not polygons)
    assert bool(caplog.messages) == (segmentation != [SQUARE])
    assert dataset.background_images == []
    (batch,) = rcnn.training_batches(dataset, rcnn.Loading((10, 20), batch_size=1, mirrors=False), range(1))
    assert batch.masks[0, 0].sum() == 36
    assert len(read(*written(folder, content(segmentation=segmentation))).objects(2)) == 1  # boxes only


ENCODED = rle.merge(rle.frPyObjects([SQUARE], 10, 20))["counts"].decode()
MASKS = [[SQUARE], {"size": [10, 20], "counts": run_lengths(ENCODED)}, {"size": [10, 20], "counts": ENCODED}]


@pytest.mark.parametrize("mask", MASKS, ids=["polygons", "run lengths", "text"])
def test_masks_that_do_not_fit_their_box(mask, folder, caplog):
    """The mask of the second object is the square from (2, 2) to (8, 8), that of the first lies in its box."""
    leaves = "masks that leave their box by more than a pixel (1)"
    small = "masks of less than half the width and height of their box (1)"
    for box, said in {
        (2, 2, 6, 6): None,
        (3, 3, 5, 5): None,
        (2, 2, 6, 4.9): leaves,
        (3.1, 2, 5, 6): leaves,
        (10, 2, 6, 6): leaves,
        (2, 2, 12, 12): None,
        (2, 2, 12.1, 12.1): small,
        (2, 2, 13, 6): None,
    }.items():
        caplog.clear()
        read(*written(folder, content(bbox=box, segmentation=mask)), masks=True)
        assert [text for text in (leaves, small) if text in caplog.text] == ([said] if said else []), box


@pytest.mark.parametrize(
    "segmentation",
    [
        None,
        False,
        "",
        "2,2,8,8",
        SQUARE,
        [[[2, 2], [8, 2], [8, 8]]],
        [["2", "2", "8", "2", "8", "8"]],
        {"counts": "0"},
        {"size": [10, 20], "counts": [100, 99]},
        {"size": [10, 20], "counts": [300, -100]},
        {"size": [20, 10], "counts": [200]},
        {"size": [10, 20], "counts": "o"},  # ends within a number, which pycocotools would read beyond
        {"size": [10, 20], "counts": "\x00"},
        {"size": [10, 20], "counts": None},
    ],
)
def test_segmentations_that_are_refused(segmentation, folder):
    with pytest.raises(ValueError, match=r"segmentation of annotations\[1\] \(id 8\) .* must be .*, got"):
        read(*written(folder, content(segmentation=segmentation)), masks=True)


def test_run_lengths():
    random = np.random.default_rng(0)
    for _ in range(50):
        height, width = random.integers(1, 60, 2)
        mask = np.asfortranarray(random.random((height, width)) < random.random(), np.uint8)
        pixels = mask.ravel("F")
        edges = np.flatnonzero(np.diff(pixels)) + 1
        lengths = np.diff([0, *([0] if pixels[0] else []), *edges, pixels.size])
        assert run_lengths(rle.encode(mask)["counts"].decode()) == lengths.tolist()


def crowded(folder, count):
    made = content()
    one = made["annotations"][1]
    made["annotations"] += [one | {"id": 100 + number} for number in range(count - 1)]
    return read(*written(folder, made))


def both(dataset, steps, size=2, full=False, **settings):
    """The training batches of both kinds of detectors; full: with masks and augmentations."""
    of_rcnn = rcnn.Loading((32, 32), batch_size=size, masks=full, **settings)
    of_detr = detr.Loading(((32, 32),), batch_size=size, augmented=full, **settings)
    return rcnn.training_batches(dataset, of_rcnn, steps), detr.training_batches(dataset, of_detr, steps)


def labels(batches):
    """The labels in the only batch."""
    (batch,) = batches
    return getattr(batch, "targets", batch).labels


def test_no_object_is_lost(folder):
    """By default, batches have room for all objects of their images; --objects says how many there are at most."""
    dataset = crowded(folder, 147)
    assert dataset.counts == [1, 147]
    for objects, room, kept in ((None, 256, 147), (200, 200, 147), (50, 50, 50)):
        for found in map(labels, both(dataset, range(1), objects=objects)):
            assert found.shape == (2, room) and sorted((found >= 0).sum(1)) == [1, kept]


def test_more_objects_than_queries(folder):
    dataset = crowded(folder, 147)
    check_counts(dataset, None, 147)
    check_counts(dataset, 100, 100)
    for limit in (None, 120):
        with pytest.raises(ValueError, match=r"--objects must be at most 100, .* for b.png has 147 objects"):
            check_counts(dataset, limit, 100)


def test_background(folder):
    """Images without annotations are trained on only if that is asked for."""
    made = content()
    del made["annotations"][1]
    dataset = read(*written(folder, made))
    assert dataset.background_images == [2]
    for background, expected in ((False, {1}), (True, {0, 1})):
        for found in map(labels, both(dataset, range(1), background=background)):
            assert {*(found >= 0).sum(1).tolist()} == expected


@pytest.mark.parametrize("size", [1, 2])
def test_damaged_images(size, folder, caplog):
    """They are named once and left out, if that is asked for, also from batches of one image."""
    dataset = read(*written(folder, content()), masks=True)
    (folder / "a.png").write_bytes((folder / "b.png").read_bytes()[:-30])
    for batches in both(dataset, range(3), size):
        with pytest.raises(ImageError, match=r"a\.png must be an image") as caught:
            list(batches)
        assert caught.value.__notes__ == ["--skip-damaged leaves it out."]
    for batches in both(dataset, range(3), size, skips_damaged=True):
        assert len(list(batches)) == 3
        assert re.search(r"a\.png must be .*; it is not trained on$", caplog.messages[0])
        assert caplog.messages[1:] == ["1 damaged images were not trained on"]
        caplog.clear()
    (folder / "b.png").write_bytes(b"")
    for batches in both(dataset, range(1), size, skips_damaged=True):
        with pytest.raises(ImageError, match=r"\.png must be an image") as caught:
            list(batches)
        assert caught.value.__notes__ == ["The 16 images after it are damaged, too."]


def test_images_that_cannot_be_read_now(folder):
    """An error of the operating system says nothing of the image, which is not left out."""
    dataset = read(*written(folder, content()), masks=True)
    for name in ("a.png", "b.png"):
        (folder / name).unlink()
    for batches in both(dataset, range(1), skips_damaged=True):
        with pytest.raises(ImageError, match="No such file"):
            list(batches)


@pytest.mark.slow
def test_processes_make_the_batches_of_threads(folder):
    dataset = read(*written(folder, content()), masks=True)
    of_threads, of_processes = (both(dataset, range(2), full=True, processes=processes) for processes in (False, True))
    for found, expected in zip(of_processes, of_threads, strict=True):
        jax.tree.map(assert_array_equal, list(found), list(expected))


def test_the_page_has_all_fields():
    page = (Path(__file__).parents[2] / "docs/annotations.md").read_text()
    fields = [(kind, field) for kind, of_kind in FIELDS.items() for field in of_kind]
    rows = re.findall(r"^\| (\w*) ?\| `(\w+)` \|", page, re.MULTILINE)
    kinds = itertools.accumulate((kind for kind, _ in rows), lambda last, kind: kind or last)
    assert [*zip(kinds, (field for _, field in rows), strict=True)] == [*fields, ("annotations", "segmentation")]


def test_what_a_command_says_before_it_trains(folder, capsys):
    """Of four images: one is trained on, one has only a crowd, one is background, and one has objects of no size."""
    made = content()
    made["images"] = [made["images"][0] | {"id": name, "file_name": f"{name}.png"} for name in "abcd"]
    one = made["annotations"][0]
    made["annotations"] = [
        one | {"id": 1, "image_id": "a", "bbox": [1, 2, 1.5, 4]},
        one | {"id": 2, "image_id": "b", "iscrowd": 1},
        one | {"id": 3, "image_id": "c", "bbox": [1, 2, 0, 4]},
    ]
    names = "motorbike", "motorcycle", "turnLeft", "upright"
    made["categories"] += [{"id": number, "name": name} for number, name in enumerate(names, 4)]
    for name in "cd":
        Image.new("RGB", (20, 10)).save(folder / f"{name}.png")
    options = argparse.Namespace(background=False, objects=None, validation=None, evaluate_only=False, mirrors=True)
    options.annotations, options.images = written(folder, made)
    other = folder / "other"
    other.mkdir()
    (other / "a.png").symlink_to(folder / "a.png")
    names = "a.png", "../b.png", str(folder / "c.png"), "../d.png"
    shared = [image | {"file_name": name} for image, name in zip(made["images"], names, strict=True)]
    (folder / "validation.json").write_text(json.dumps(made | {"images": shared}))
    options.validation = folder / "validation.json", other
    dataset, _ = read_data(options)
    print_small_objects(dataset, 10, keeps_ratio=False)
    assert capsys.readouterr().out.splitlines() == [
        "1 validation images have no annotations: whatever is found there counts as wrong.",
        "1 images without annotations are not trained on. --background trains on them, too.",
        "2 images are not trained on, because their objects are not.",
        "Classes without an object to train on: 'motorbike', 'motorcycle', 'turnLeft', 'upright'",
        "Classes of their own, although their names mean the same: 'motorbike', 'motorcycle'",
        "Mirrored objects keep these classes, which name a side (--no-mirror mirrors none): 'turnLeft'",
        "4 of the 4 validation images are trained on, too.",
        "1 objects have a side below a pixel in images of 10 pixels, and are not trained on there.",
    ]
    options.mirrors = False
    read_data(options)
    assert "Mirrored" not in capsys.readouterr().out


def test_data_without_objects(folder):
    annotations, _ = written(folder, content() | {"annotations": [content(iscrowd=1)["annotations"][1]]})
    options = argparse.Namespace(annotations=annotations, images=folder, validation=None, evaluate_only=False)
    with pytest.raises(ValueError, match=r"annotations.json must have objects to train on"):
        read_data(options)
    options.evaluate_only, options.validation = True, (annotations, folder)
    with pytest.raises(ValueError, match=r"annotations.json must have objects other than crowds for the average"):
        read_data(options)
    written(folder, content() | {"annotations": [content(segmentation=[])["annotations"][1]]})
    for options.evaluate_only in (True, False):
        with pytest.raises(ValueError, match=r"no object in .*annotations.json has a mask, apart from crowds: pass"):
            read_data(options, masks=True)


BOXES = {"a.png": [("cat", 1, 2, 8, 6), ("dog", 3, 0, 17, 10)], "b.jpg": [("dog", 0, 4, 10, 12)], "c.png": []}
NAMES = ["cat", "dog"]
YAML = "path: .\ntrain: ../train/images\nval: [valid/images]\nnames: [cat, dog]\n"
VOC = """<annotation><filename>{}</filename><size><width>{}</width><height>{}</height></size>{}</annotation>"""
OBJECT = (
    """<object><name>{}</name><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"""
)


def write_images(folder):
    """Images of 20 x 10 pixels, one of which its EXIF data turns."""
    folder.mkdir(parents=True)
    turned = Image.Exif()
    turned[0x0112] = 6
    for name in BOXES:
        Image.new("RGB", (20, 10)).save(folder / name, **({"exif": turned} if name == "b.jpg" else {}))


@pytest.fixture
def data_sets(tmp_path):
    """The same images and objects in each format: the path of annotations, and of COCO the images."""
    coco, yolo, voc = (tmp_path / name for name in ("coco", "yolo", "voc"))
    images, annotations = [], []
    for folder in (coco, yolo / "train/images", yolo / "valid/images", voc / "JPEGImages"):
        write_images(folder)
    for folder in (yolo / "train/labels", voc / "Annotations", voc / "ImageSets/Main"):
        folder.mkdir(parents=True)
    for image, boxes in BOXES.items():
        width, height = (10, 20) if image == "b.jpg" else (20, 10)
        images.append({"id": image, "file_name": image, "width": width, "height": height})
        lines, objects = [], []
        for name, x0, y0, x1, y1 in boxes:
            one = {"id": len(annotations), "image_id": image, "category_id": NAMES.index(name) + 1}
            annotations.append(one | {"bbox": [x0, y0, x1 - x0, y1 - y0]})
            corners = x0 / width, y0 / height, x1 / width, y1 / height
            sides = (x0 + x1) / 2 / width, (y0 + y1) / 2 / height, (x1 - x0) / width, (y1 - y0) / height
            polygon = *corners[:2], corners[2], corners[1], *corners[2:], corners[0], corners[3]
            lines.append(" ".join(map(str, [NAMES.index(name), *(polygon if name == "cat" else sides)])))
            objects.append(OBJECT.format(name, x0 + 1, y0 + 1, x1, y1))
        stem = image.partition(".")[0]
        if image != "c.png":
            (yolo / f"train/labels/{stem}.txt").write_text("\n".join(lines) + "\n")
        (voc / f"Annotations/{stem}.xml").write_text(VOC.format(image, width, height, "".join(objects)))
    (voc / "ImageSets/Main/train.txt").write_text("a\nb\nc\n")
    (yolo / "data.yaml").write_text(YAML)
    categories = [{"id": 0, "name": "pets", "supercategory": "none"}]
    categories += [{"id": number, "name": name, "supercategory": "pets"} for number, name in enumerate(NAMES, 1)]
    content = {"images": images, "categories": categories, "annotations": annotations}
    (coco / "_annotations.coco.json").write_text(json.dumps(content))
    return {"coco": coco, "yolo": yolo / "data.yaml", "voc": voc}


def options_of(path, *validation):
    """Of a training on all images."""
    options = argparse.Namespace(annotations=path, images=None, validation=validation, evaluate_only=False)
    options.background, options.objects, options.mirrors = True, None, True
    return options


def test_data_sets_of_other_formats(data_sets, caplog):
    """Each gives the same batches, whose boxes fit the image that EXIF data turns."""
    found = {}
    for kind, path in data_sets.items():
        options = options_of(path)
        dataset, _ = read_data(options)
        assert dataset.names == NAMES
        loading = detr.Loading(((32, 32),), batch_size=3, augmented=False, background=True)
        (found[kind],) = detr.training_batches(dataset, loading, range(1))
    for batch in found.values():
        jax.tree.map(lambda *both: assert_allclose(*both, atol=1e-6), batch, found["coco"])
        assert sorted((batch.targets.labels >= 0).sum(1)) == [0, 1, 2]
    groups = "category 'pets' with the id 0, which groups others and has no object. It is left out."
    assert [groups in message for message in caplog.messages] == [True]
    assert read_names(data_sets["coco"] / "_annotations.coco.json") == NAMES
    with_mask = read(data_sets["yolo"]).annotations.anns
    assert [one["has_mask"] for one in with_mask.values()] == [True, False, False]


@pytest.mark.parametrize(
    ("group", "member", "object_of"),
    [({}, {}, 0), ({"supercategory": "thing"}, {}, 3), ({"id": 7}, {}, 3), ({}, {"supercategory": "none"}, 3)],
    ids=["used", "in a group", "with another id", "without members"],
)
def test_categories_that_are_kept(group, member, object_of, folder):
    made = content(category_id=object_of)
    made["categories"] = [{"id": 0, "name": "pets", "supercategory": "none"} | group]
    made["categories"].append({"id": 3, "name": "cat", "supercategory": "pets"} | member)
    assert read(*written(folder, made)).names == ["pets", "cat"]


def test_a_group_with_the_name_of_its_class(folder):
    made = content()
    names = {"name": "cat", "supercategory": "cat"}
    made["categories"] = [names | {"id": 0, "supercategory": "none"}, names | {"id": 3}]
    assert read(*written(folder, made)).names == ["cat"]


def test_parts_of_data_sets(data_sets):
    """Validation has the part val by default. What a run must not change follows from the annotations of its part."""
    yolo, voc = data_sets["yolo"], data_sets["voc"]
    (yolo.parent / "valid/labels").mkdir()
    (yolo.parent / "valid/labels/c.txt").write_text("1 0.5 0.5 0.5 0.5")
    (voc / "ImageSets/Main/val.txt").write_text("b")  # without an object of the class cat
    for path, counts in ((yolo, [0, 0, 1]), (voc, [1])):
        options, same = options_of(path, path), options_of(path, path, "train")
        train, validation = read_data(options)
        assert [train.counts, validation.counts] == [[2, 1, 0], counts]
        assert train.digest == read_data(same)[1].digest != validation.digest
        assert read(path, part="val").names == NAMES


REFUSED = [
    ("yolo/train/labels/a.txt", "0 .5 .5 .5", r"a.txt:1 must have a class and a box or the corners .*, got 4 numbers"),
    ("yolo/train/labels/a.txt", "\n0 .5 .5 .5 .5 .9", r"a.txt:2 must have a class and a box .*, got 6 numbers"),
    ("yolo/train/labels/a.txt", "0 .5 .5 nan .5", r"a.txt:1 must have coordinates as .*, got \[0.5, 0.5, nan"),
    ("yolo/train/labels/a.txt", "0 120 50 20 10", r"a.txt:1 must have coordinates as fractions .*, got \[120.0"),
    ("yolo/train/labels/a.txt", "cat .5 .5 .5 .5", "a.txt:1 must have only numbers: .*'cat'"),
    ("yolo/train/labels/a.txt", "2 .5 .5 .5 .5", r"a.txt:1 must have a class that has a name, '0', '1', got 2"),
    ("yolo/train/labels/a.txt", "0.5 .5 .5 .5 .5", r"a.txt:1 must have a class that has a name, '0', '1', got 0.5"),
    ("yolo/train/images/a.png", "text", "a.png must be an image: "),
    ("yolo/data.yaml", YAML.replace("../train", "../tests"), "data.yaml names '../tests/images', which must exist"),
    ("yolo/data.yaml", YAML.replace("train:", "test:"), "data.yaml must have a path .* 'train', got 'path', 'test'"),
    ("yolo/data.yaml", "train: [", "data.yaml must be YAML: "),
    ("yolo/data.yaml", YAML + "nc: 3", "nc in .*data.yaml must be the number of names, 2, got 3"),
    ("yolo/data.yaml", YAML.replace("[cat, dog]", "2"), "names in .*data.yaml must be a list of names .*, got 2"),
    ("yolo/data.yaml", YAML.replace("../train/images", "train/labels"), "data.yaml must name images, got none"),
    ("yolo/data.yaml", YAML.replace("train/", "valid/"), "must have objects, got none in 3 .* in .*valid/labels/a.txt"),
    ("voc/Annotations/a.xml", "<annotation>", "a.xml must be XML: no element found"),
    ("voc/Annotations/a.xml", VOC.format("a.png", 20, 10, "<object><name>cat</name></object>"), "a.xml, object 1 must"),
    ("voc/Annotations/a.xml", VOC.format("", 9, 9, OBJECT.format("a", 1, 1, "x", 3)), "object 1 must have a bndbox"),
    ("voc/Annotations/a.xml", VOC.format("", 9, 9, OBJECT.format(" ", 1, 1, 3, 3)), "a.xml, object 1 must have a name"),
    ("voc/Annotations/a.xml", VOC.format("", 9, 9, OBJECT.format("a", 5, 1, 3, 3)), "object 1 must have xmin and ymin"),
    ("voc/Annotations/a.xml", VOC.format("", 9.5, 9, ""), r"width of images\[0\] \(id a.png\) in .*voc .*, got 9.5"),
    ("voc/ImageSets/Main/train.txt", "d", "No such file .*Annotations/d.xml"),
    ("voc/ImageSets/Main/train.txt", None, "voc must have the part 'train' in ImageSets/Main, which has nothing"),
    ("voc/JPEGImages/a.png", None, "must have the images of .*voc, but lacks 'a.png'"),
    ("coco/_annotations.coco.json", None, "coco must be a file of annotations or a folder with a data.yaml, "),
]


@pytest.mark.parametrize(("file", "text", "message"), REFUSED)
def test_data_sets_that_are_refused(file, text, message, data_sets, tmp_path):
    (tmp_path / file).unlink() if text is None else (tmp_path / file).write_text(text)
    with pytest.raises((OSError, ValueError), match=message):
        read(data_sets[file.partition("/")[0]])


def test_what_other_formats_may_have(data_sets, tmp_path, caplog):
    """Difficult objects, sizes that are missing, names by numbers, points, lists of images, and files side by side."""
    objects = OBJECT.format("dog", 1, 1, 4, 4).replace("<bnd", "<difficult>1</difficult><bnd")
    (tmp_path / "voc/Annotations/b.xml").write_text(VOC.format("other name", 0, "", objects))
    dataset = read(data_sets["voc"])
    assert dataset.counts == [2, 0, 0] and dataset.background_images == [3]
    assert dataset.annotations.imgs[2]["height"] == 20 and "has crowds (1)" in caplog.text
    text = "names: {1: dog, 0: 7}\ntrain: [train.txt]\nkpt_shape: [2, 3]\n"
    data_sets["yolo"].write_text(text)
    (tmp_path / "yolo/train.txt").write_text("./train/images/b.jpg\n\ntrain/images/a.png\n")
    (tmp_path / "yolo/train/labels/b.txt").write_text("1.0 .5 .5 .5 1.001 9 9 1 9 9 2")
    dataset = read(data_sets["yolo"].parent)
    assert dataset.names == ["7", "dog"] and dataset.counts == [1, 2]
    assert_array_equal(dataset.objects(1)[0]["corners"], [2.5, 0, 7.5, 20])
    for file in (tmp_path / "voc/Annotations").iterdir():
        file.rename(tmp_path / "voc/JPEGImages" / file.name)
    assert read(tmp_path / "voc/JPEGImages").counts == [2, 0, 0]
