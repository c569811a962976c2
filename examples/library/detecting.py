"""The command that detects objects in photographs and videos: it prints them, draws them, and writes them as JSON."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from . import videos
from .command_line import Parser
from .files import replaced, to_json
from .objects import Objects, drawn, pictures
from .photographs import opened

# From an image, and what to call it in errors.
Detect = Callable[[Image.Image, str], Objects]


def make_parser(program: str, doc: str, checkpoint: str) -> Parser:
    """The parser of such a command; `checkpoint` describes that argument."""
    parser = Parser(program, doc)
    parser.add_argument("checkpoint", type=Path, help=checkpoint)
    parser.add_argument("images", type=Path, nargs="+", help="files of images and videos, and folders of them")
    parser.add_argument("--threshold", type=float, default=0.5, help="the lowest score of an object (%(default)s)")
    out_help = "the picture of one image, the .mp4 of one video, or the folder of all of them (%(default)s)"
    parser.add_argument("--out", type=Path, default=Path("detections.png"), help=out_help)
    parser.add_argument("--json", type=Path, help="a file to write the boxes to, as JSON")
    return parser


def run(options: argparse.Namespace, detect: Detect, names: Sequence[str]) -> None:
    """Detects objects in all images and videos that the options name. names: of the classes.

    Raises ValueError, OSError or ImportError for what cannot be read or written.
    """
    listed: list[dict[str, Any]] = []
    for path, picture in pictures(options.images, options.out, videos.ENDINGS):
        picture.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() in videos.ENDINGS:
            listed += _in_video(path, picture, detect, names)
            continue
        image = opened(path)
        objects = detect(image, str(path))
        for score, label, (x0, y0, x1, y1) in zip(objects.scores, objects.labels, objects.boxes, strict=True):
            print(f"{names[label]:20} {score:.3f}  from ({x0:.1f}, {y0:.1f}) to ({x1:.1f}, {y1:.1f})")
        drawn(image, objects, names).savefig(picture)
        print(f"{len(objects.scores)} objects are in {picture}.")
        listed.append({"file": str(path), **described(image, objects, names)})
    if options.json:
        with replaced(options.json) as file:
            file.write_text(to_json(listed))


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
