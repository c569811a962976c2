"""The command that detects objects in photographs and videos: it prints them, draws them, and writes them as JSON."""

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from . import videos
from .command_line import FRACTION, Parser
from .files import replaced, to_json
from .objects import Objects, drawn, pictures
from .photographs import ImageError, opened
from .precision import check_finite

Detect = Callable[[Image.Image], Objects]

TINY = np.finfo(np.float32).tiny


def make_parser(program: str, doc: str, checkpoint: str) -> Parser:
    """The parser of such a command; `checkpoint` describes that argument."""
    parser = Parser(program, doc)
    parser.add_argument("checkpoint", type=Path, help=checkpoint)
    parser.add_argument(
        "images",
        type=Path,
        nargs="+",
        help=f"files of images and videos ({', '.join(sorted(videos.ENDINGS))}), and folders of them",
    )
    parser.add_argument("--threshold", type=FRACTION, default=0.5, help="the lowest score of an object (%(default)s)")
    out_help = "the picture of one image, the .mp4 of one video, or the folder of all of them (%(default)s)"
    parser.add_argument("--out", type=Path, default=Path("detections.png"), help=out_help)
    parser.add_argument("--json", type=Path, help="a file to write the boxes to, as JSON")
    return parser


def run(options: argparse.Namespace, detect: Detect, names: Sequence[str]) -> None:
    """Detects objects in all images and videos that the options name. names: of the classes.

    detect: finds the objects in an image, of which those with a score of 0 are padding. Raises ValueError, OSError or
    ImportError for what cannot be read or written. If there are several files, those that cannot be read are named, and
    the error comes after all others.
    """

    def shown(image, name):
        found = detect(image)
        check_finite(name, found.scores, found.boxes)
        is_shown = found.scores >= max(options.threshold, TINY)
        return Objects(*(None if part is None else part[is_shown] for part in found))

    listed: list[dict[str, Any]] = []
    found, damaged = pictures(options.images, options.out, videos.ENDINGS), 0
    if options.json:
        _check_json(options.json.resolve(), [options.checkpoint, *chain.from_iterable(found)])
    for path, picture in found:
        try:
            in_file = _in_video if path.suffix.lower() in videos.ENDINGS else _in_image
            listed += in_file(path, picture, shown, names)
        except (ImageError, videos.VideoError) as error:
            if len(found) == 1:
                raise
            damaged += 1
            print(error, file=sys.stderr)
    if options.json:
        with replaced(options.json) as file:
            file.write_text(to_json(listed))
    if damaged:
        raise ImageError(f"{damaged} of {len(found)} files could not be read. The others were.")


def _check_json(path, others):
    """Ends with an error, before any work is done, if a file of JSON cannot be written or would overwrite another."""
    for other in map(Path.resolve, others):
        if other in (path, *path.parents):
            raise ValueError(f"--json must be a file of its own, but {path} is {other} or in it")
    if path.is_dir():
        raise ValueError(f"--json must be a file, got the folder {path}")


def _in_image(path, picture, detect, names):
    image = opened(path)
    objects = detect(image, str(path))
    for score, label, (x0, y0, x1, y1) in zip(objects.scores, objects.labels, objects.boxes, strict=True):
        print(f"{names[label]:20} {score:.3f}  from ({x0:.1f}, {y0:.1f}) to ({x1:.1f}, {y1:.1f})")
    picture.parent.mkdir(parents=True, exist_ok=True)
    drawn(image, objects, names).savefig(picture)
    print(f"{len(objects.scores)} objects are in {picture}.")
    return [{"file": str(path), **described(image, objects, names)}]


def _in_video(path, picture, detect, names):
    listed = []

    def draw(seconds, image):
        number = len(listed)
        objects = detect(image, f"frame {number} of {path}")
        found = described(image, objects, names)
        listed.append({"file": str(path), "frame": number, "seconds": seconds, **found})
        return drawn(image, objects, names)

    videos.convert(path, picture, draw)
    count = sum(len(one["objects"]) for one in listed)
    print(f"{count} objects in {len(listed)} frames are in {picture}.")
    return listed


def described(image: Image.Image, objects: Objects, names: Sequence[str]) -> dict[str, Any]:
    """The size of an image and its objects, with boxes (x0, y0, x1, y1) in pixels, for a JSON file."""
    found = zip(objects.labels, objects.scores, objects.boxes, strict=True)
    listed = [{"class": names[label], "score": float(score), "box": [*map(float, box)]} for label, score, box in found]
    return {"width": image.width, "height": image.height, "objects": listed}
