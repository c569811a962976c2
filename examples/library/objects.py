"""The objects that a detector finds in image files: printed, and drawn into pictures."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from .command_line import Parser

PALETTE = matplotlib.colormaps["tab20"]
DPI = 100
FORMATS = Figure().canvas.get_supported_filetypes()
OPACITY = 0.45  # of masks


class Objects(NamedTuple):
    """Objects, best first: scores [n] in [0, 1], labels [n], and boxes [n, 4] as (x0, y0, x1, y1) in pixels.

    masks: bool [n, height, width], of detectors that find them.
    """

    scores: np.ndarray
    labels: np.ndarray
    boxes: np.ndarray
    masks: np.ndarray | None = None


def make_parser(program: str, doc: str, checkpoint: str) -> Parser:
    """The parser of a command that detects objects in images; `checkpoint` describes that argument."""
    parser = Parser(program, doc)
    parser.add_argument("checkpoint", type=Path, help=checkpoint)
    parser.add_argument("images", type=Path, nargs="+", help="image files, and folders of them")
    parser.add_argument("--threshold", type=float, default=0.5, help="the lowest score of an object (%(default)s)")
    out_help = "the picture of one image file, or the folder of all pictures (%(default)s)"
    parser.add_argument("--out", type=Path, default=Path("detections.png"), help=out_help)
    return parser


def checked_threshold(parser: argparse.ArgumentParser, options: argparse.Namespace) -> float:
    """The threshold of the command line. Ends the command with an error if it is no probability."""
    if not 0 <= options.threshold <= 1:
        parser.error(f"--threshold must be between 0 and 1, got {options.threshold}")
    return options.threshold


def check_picture(parser: argparse.ArgumentParser, option: str, path: Path) -> None:
    """Ends the command with an error unless the name of a picture ends as that of a format of Matplotlib."""
    if path.suffix[1:].lower() not in FORMATS:
        parser.error(f"{option} must end in .png or that of another format, got {path}")


def pictures(images: Sequence[Path], out: Path) -> list[tuple[Path, Path]]:
    """The image files that a command is given, and the picture to write for each.

    out: the picture of one file, or the folder of all pictures. Raises ValueError if it is among the images, if two
    files have the same name, or if folders have no images.
    """
    if out.resolve() in [path.resolve() for path in images]:
        raise ValueError(f"--out must be none of the images, got {out}")
    if len(images) == 1 and not images[0].is_dir() and not out.is_dir() and out.suffix[1:].lower() in FORMATS:
        return [(images[0], out)]
    readable = {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    files = []
    for path in images:
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        found = [file for file in inside if file == path or file.suffix.lower() in readable]
        if not found or len(found) < len(inside):
            skipped = len(inside) - len(found)
            print(f"{path} has {len(found)} images. {skipped} entries with other names are skipped.")
        files += found
    if not files:
        raise ValueError(f"the folders must have images, got {', '.join(map(str, images))}")
    folder = out.with_suffix("") if out.suffix == ".png" else out
    found = [(file, folder / f"{file.name}.png") for file in files]
    names = [picture.name for _, picture in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"images must have names of their own, got {twice[0].removesuffix('.png')} twice")
    return found


def report(out: Path, image: Image.Image, objects: Objects, names: Sequence[str]) -> None:
    """Prints the objects, and writes a picture of them."""
    for score, label, (x0, y0, x1, y1) in zip(objects.scores, objects.labels, objects.boxes, strict=True):
        print(f"{names[label]:20} {score:.3f}  from ({x0:.1f}, {y0:.1f}) to ({x1:.1f}, {y1:.1f})")
    out.parent.mkdir(parents=True, exist_ok=True)
    draw(out, image, objects, names)
    print(f"{len(objects.scores)} objects are in {out}.")


def draw(out: Path, image: Image.Image, objects: Objects, names: Sequence[str]) -> None:
    """Writes an image with the boxes of objects, their labels and scores, and their masks, to a file."""
    pixels = np.asarray(image, np.float32)
    if objects.masks is not None:
        for mask, label in zip(objects.masks[::-1], objects.labels[::-1], strict=True):  # the best on top
            colour = 255 * np.float32(PALETTE(int(label) % PALETTE.N)[:3])
            pixels = np.where(mask[..., None], (1 - OPACITY) * pixels + OPACITY * colour, pixels)
    figure = Figure(figsize=(image.width / DPI, image.height / DPI))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(pixels.round().astype(np.uint8))
    axes.set_axis_off()
    for score, label, box in zip(objects.scores, objects.labels, objects.boxes, strict=True):
        draw_box(axes, box, PALETTE(int(label) % PALETTE.N), f"{names[label]} {score:.2f}")
    axes.set_xlim(0, image.width)
    axes.set_ylim(image.height, 0)
    figure.savefig(out, dpi=DPI)


def draw_box(axes: Axes, box: np.ndarray, colour: Any, text: str = "", size: int = 9) -> None:
    """Draws a box (x0, y0, x1, y1), and a text on its upper edge."""
    x0, y0, x1, y1 = box
    axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=colour, linewidth=2))
    background = {"facecolor": colour, "edgecolor": "none", "pad": 1} if text else None
    alignment = "bottom" if y0 > size else "top"  # inside the box, if it is at the upper edge of the image
    axes.text(x0, y0, text, fontsize=size, verticalalignment=alignment, bbox=background, parse_math=False)
