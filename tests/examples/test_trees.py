"""The data set of trees: from photographs that are made here, and from the package's where it is installed."""

import itertools
import json

import numpy as np
import pytest
from PIL import Image

from examples import trees
from examples.library import coco

pytestmark = pytest.mark.platforms("cpu")
BOXES = [[10, 20, 40, 50], [90, 5, 130, 25], [150, 60, 160, 78]]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The files of the package, with images of noise that have the same boxes."""
    folder = tmp_path / "data"
    folder.mkdir()
    of_objects = "".join(
        f"<object><bndbox>{''.join(f'<{edge}>{value}</{edge}>' for edge, value in zip(trees.EDGES, box, strict=True))}"
        "</bndbox></object>"
        for box in BOXES
    )
    for name in itertools.chain(*trees.PHOTOGRAPHS.values()):
        pixels = np.random.default_rng(0).integers(0, 256, (80, 200, 4), np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")
        (folder / f"{name}.xml").write_text(f"<annotation>{of_objects}</annotation>")
    monkeypatch.setattr(trees, "packaged", lambda *_: folder)
    return folder


def test_the_data_set_has_what_the_photographs_have(package, tmp_path, capsys, refusal):
    trees.main([str(tmp_path / "set"), "--side", "100"])
    assert capsys.readouterr().out.endswith("test.json has 6 images with 9 trees.\n")
    content = json.loads((tmp_path / "set/train.json").read_text())
    found = {}
    for one in content["annotations"]:
        x, y, width, height = one["bbox"]
        found.setdefault(one["image_id"], []).append([x, y, x + width, y + height, one["iscrowd"]])
    assert found == {
        1: [[10, 20, 40, 50, 0], [90, 5, 100, 25, 1]],  # a quarter of the second box is in this tile
        2: [[0, 5, 30, 25, 0], [50, 60, 60, 78, 0]],
    }
    assert coco.read(tmp_path / "set/train.json", tmp_path / "set/images")
    whole = np.asarray(Image.open(package / f"{trees.PHOTOGRAPHS['train'][0]}.png"))[..., :3]
    tiles = [np.asarray(Image.open(tmp_path / "set/images" / image["file_name"])) for image in content["images"]]
    np.testing.assert_array_equal(np.concatenate(tiles, 1), whole)
    assert "OUT must have no images yet" in refusal(trees.main, tmp_path / "set")


def test_what_is_refused(package, tmp_path, refusal):
    name = trees.PHOTOGRAPHS["train"][0]
    for text, message in [
        ("no", "must be XML"),
        ("<a><bndbox><xmin>5</xmin></bndbox></a>", "xmin, ymin, xmax, ymax and an area, got [5.0, nan, nan, nan]"),
    ]:
        (package / f"{name}.xml").write_text(text)
        found = refusal(trees.main, tmp_path / "set")
        assert message in found and f"{name}.xml does not fit" in found


@pytest.mark.slow
def test_the_package(packaged, tmp_path):
    written = trees.write(packaged(trees.PACKAGE, "data"), tmp_path, 400)
    assert written == {"train": (42, 573), "test": (14, 377)}
    for part in trees.PHOTOGRAPHS:
        assert coco.read(tmp_path / f"{part}.json", tmp_path / "images")
