"""Aerial photographs of forests and the boxes of their trees, as a data set in COCO's format.

python -m examples.trees OUT        # OUT/train.json and OUT/test.json, and the images in OUT/images

The photographs are in the package deepforest, which is not imported: `pip install --no-deps deepforest==2.1.0`. Its
licence is the MIT License; it names no terms for the photographs. The largest one is for training, and the three others
are for the test. All are cut into tiles. A tile keeps a box if at least half of its area is inside. A smaller part
becomes a crowd, which is neither trained on nor counted as an error.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil, prod
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from examples.library.command_line import COUNT, Parser
from examples.library.files import naming, packaged, replaced
from examples.library.photographs import opened
from examples.library.precision import corners_to_sides

PACKAGE = "deepforest==2.1.0"
PHOTOGRAPHS = {
    "train": ["2019_YELL_2_528000_4978000_image_crop2"],
    "test": ["2019_YELL_2_541000_4977000_image_crop", "OSBS_029", "SOAP_061"],
}
EDGES = ("xmin", "ymin", "xmax", "ymax")
CATEGORY = {"id": 1, "name": "tree"}
SHOWN = 0.5  # the least fraction of a box that a tile must show, as otherwise the box becomes a crowd


def boxes(path: Path) -> np.ndarray:
    """The boxes [n, 4] of a file in Pascal VOC's format, as (x0, y0, x1, y1) in pixels.

    Raises ValueError, which names the file, if it is not in this format, or has a box without an area.
    """
    with naming(path):
        try:
            objects = ElementTree.parse(path).getroot().iter("bndbox")
        except ElementTree.ParseError as error:
            raise ValueError(f"it must be XML: {error}") from error
        found = np.array([[float(one.findtext(edge, "nan")) for edge in EDGES] for one in objects]).reshape(-1, 4)
        wrong = found[~(found[:, 2:] > found[:, :2]).all(1)]
        if len(wrong):
            raise ValueError(f"each box must have {', '.join(EDGES)} and an area, got {wrong[0].tolist()}")
        return found


def tiles(width: int, height: int, side: int) -> Iterator[tuple[int, int, int, int]]:
    """Equal parts of an image, at most `side` wide and high, as (x0, y0, x1, y1) in pixels.

    >>> list(tiles(300, 100, 200))
    [(0, 0, 150, 100), (150, 0, 300, 100)]
    """
    edges = [[round(size * i / ceil(size / side)) for i in range(ceil(size / side) + 1)] for size in (width, height)]
    for y0, y1 in pairwise(edges[1]):
        for x0, x1 in pairwise(edges[0]):
            yield x0, y0, x1, y1


def in_tile(of_image: np.ndarray, tile: tuple[int, int, int, int]) -> tuple[list[list[float]], list[bool]]:
    """The parts of boxes in a tile, in its pixels, and which of them are crowds.

    >>> in_tile(np.array([[10, 10, 30, 20], [18, 0, 40, 9], [40, 0, 50, 9]]), (0, 0, 25, 25))
    ([[10, 10, 25, 20], [18, 0, 25, 9]], [False, True])
    """
    parts = np.clip(of_image, [*tile[:2]] * 2, [*tile[2:]] * 2)
    areas, whole = (np.prod(one[:, 2:] - one[:, :2], 1) for one in (parts, of_image))
    shown = areas > 0
    return (parts[shown] - [*tile[:2]] * 2).tolist(), (areas < SHOWN * whole)[shown].tolist()


def write(source: Path, out: Path, side: int) -> dict[str, tuple[int, int]]:
    """Writes both parts of the data set; returns how many tiles and trees, without crowds, each has."""
    of_images = {name: boxes(source / f"{name}.xml") for names in PHOTOGRAPHS.values() for name in names}
    (out / "images").mkdir(parents=True)
    written = {}
    for part, names in PHOTOGRAPHS.items():
        images, annotations = [], []
        for name in names:
            photograph = opened(source / f"{name}.png")
            for tile in tiles(*photograph.size, side):
                image = photograph.crop(tile)
                file = f"{name}_{tile[0]}_{tile[1]}.png"
                image.save(out / "images" / file)
                number = len(images) + 1
                images.append({"id": number, "file_name": file, "width": image.width, "height": image.height})
                for part_of_box, crowd in zip(*in_tile(of_images[name], tile), strict=True):
                    box = corners_to_sides(part_of_box)
                    found = {"bbox": box, "area": prod(box[2:]), "iscrowd": int(crowd)}
                    annotations.append({"id": len(annotations) + 1, "image_id": number, "category_id": 1, **found})
        content = {"images": images, "annotations": annotations, "categories": [CATEGORY]}
        with replaced(out / f"{part}.json") as file:
            file.write_text(json.dumps(content))
        written[part] = len(images), sum(not one["iscrowd"] for one in annotations)
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    parser = Parser("python -m examples.trees", __doc__, compiles=False)
    parser.add_argument("out", type=Path, help="the folder to write to")
    parser.add_argument("--side", type=COUNT, default=400, help="of the tiles, at most, in pixels (%(default)s)")
    options = parser.parse_args(arguments)
    if (options.out / "images").exists():
        parser.error(f"OUT must have no images yet, but has {options.out / 'images'}")
    with parser.reporting():
        for part, (images, trees) in write(packaged(PACKAGE, "data"), options.out, options.side).items():
            print(f"{options.out / part}.json has {images} images with {trees} trees.")


if __name__ == "__main__":
    main()
