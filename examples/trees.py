"""Aerial photographs of forests and the boxes of their trees, as a data set in COCO's format.

python -m examples.trees OUT        # OUT/train.json and OUT/test.json, and the images in OUT/images

They are in the package deepforest (MIT License), which need not be imported: `pip install --no-deps deepforest==2.1.0`.
The largest photograph is for training, and the three others are for the test, all cut into tiles.
"""

import importlib.util
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from examples.library.command_line import Parser

PACKAGE = "deepforest"
PHOTOGRAPHS = {
    "train": ["2019_YELL_2_528000_4978000_image_crop2"],
    "test": ["2019_YELL_2_541000_4977000_image_crop", "OSBS_029", "SOAP_061"],
}
EDGES = ("xmin", "ymin", "xmax", "ymax")
CATEGORY = {"id": 1, "name": "tree"}
SHOWN = 0.5  # of a box, at least, if a tile has it


def published() -> Path:
    """The folder of the photographs. Raises FileNotFoundError if the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            "the photographs are in the package deepforest: `pip install --no-deps deepforest==2.1.0`"
        )
    return Path(spec.origin).parent / "data"


def boxes(path: Path) -> np.ndarray:
    """The boxes [n, 4] of a file in Pascal VOC's format, as (x0, y0, x1, y1) in pixels."""
    objects = ElementTree.parse(path).getroot().iter("bndbox")
    return np.array([[float(one.findtext(edge, "nan")) for edge in EDGES] for one in objects]).reshape(-1, 4)


def tiles(width: int, height: int, side: int) -> Iterator[tuple[int, int, int, int]]:
    """Equal parts of an image, at most `side` wide and high, as (x0, y0, x1, y1) in pixels.

    >>> list(tiles(300, 100, 200))
    [(0, 0, 150, 100), (150, 0, 300, 100)]
    """
    edges = [[round(size * i / ceil(size / side)) for i in range(ceil(size / side) + 1)] for size in (width, height)]
    for y0, y1 in pairwise(edges[1]):
        for x0, x1 in pairwise(edges[0]):
            yield x0, y0, x1, y1


def in_tile(of_image: np.ndarray, tile: tuple[int, int, int, int]) -> np.ndarray:
    """The parts in a tile of boxes that are at least half in it, in its pixels.

    >>> in_tile(np.array([[10, 10, 30, 20], [18, 0, 40, 9]]), (0, 0, 25, 25)).tolist()
    [[10, 10, 25, 20]]
    """
    parts = np.clip(of_image, [*tile[:2]] * 2, [*tile[2:]] * 2)
    areas, whole = (np.prod(one[:, 2:] - one[:, :2], 1) for one in (parts, of_image))
    return parts[areas >= SHOWN * whole] - [*tile[:2]] * 2


def write(source: Path, out: Path, side: int) -> dict[str, tuple[int, int]]:
    """Writes both parts of the data set; returns how many tiles and boxes each has."""
    (out / "images").mkdir(parents=True, exist_ok=True)
    written = {}
    for part, names in PHOTOGRAPHS.items():
        images, annotations = [], []
        for name in names:
            of_image = boxes(source / f"{name}.xml")
            with Image.open(source / f"{name}.png") as photograph:
                for tile in tiles(*photograph.size, side):
                    image = photograph.convert("RGB").crop(tile)
                    file = f"{name}_{tile[0]}_{tile[1]}.png"
                    image.save(out / "images" / file)
                    number = len(images) + 1
                    images.append({"id": number, "file_name": file, "width": image.width, "height": image.height})
                    for x0, y0, x1, y1 in in_tile(of_image, tile).tolist():
                        box = {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0), "iscrowd": 0}
                        annotations.append({"id": len(annotations) + 1, "image_id": number, "category_id": 1, **box})
        content = {"images": images, "annotations": annotations, "categories": [CATEGORY]}
        (out / f"{part}.json").write_text(json.dumps(content))
        written[part] = len(images), len(annotations)
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    parser = Parser("python -m examples.trees", __doc__, compiles=False)
    parser.add_argument("out", type=Path, help="the folder to write to")
    parser.add_argument("--side", type=int, default=400, help="of the tiles, at most, in pixels (%(default)s)")
    options = parser.parse_args(arguments)
    if options.side < 1:
        parser.error(f"--side must be positive, got {options.side}")
    try:
        for part, (images, annotations) in write(published(), options.out, options.side).items():
            print(f"{options.out / part}.json has {images} images with {annotations} trees.")
    except OSError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
