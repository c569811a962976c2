"""The objects that a detector finds in an image file: printed, and drawn into a picture."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

PALETTE = matplotlib.colormaps["tab20"]
DPI = 100
OPACITY = 0.45  # of masks


class Objects(NamedTuple):
    """Objects, best first: scores [n] in [0, 1], labels [n], and boxes [n, 4] as (x0, y0, x1, y1) in pixels.

    masks: bool [n, height, width], of detectors that find them.
    """

    scores: np.ndarray
    labels: np.ndarray
    boxes: np.ndarray
    masks: np.ndarray | None = None


def make_parser(program: str, doc: str, checkpoint: str) -> argparse.ArgumentParser:
    """The parser of a command that detects objects in an image; `checkpoint` describes that argument."""
    parser = argparse.ArgumentParser(
        prog=program, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help=checkpoint)
    parser.add_argument("image")
    parser.add_argument("--threshold", type=float, default=0.5, help="the lowest score of an object (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("detections.png"), help="the picture (%(default)s)")
    return parser


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
    for score, label, (x0, y0, x1, y1) in zip(objects.scores, objects.labels, objects.boxes, strict=True):
        colour = PALETTE(int(label) % PALETTE.N)
        axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=colour, linewidth=2))
        background = {"facecolor": colour, "edgecolor": "none", "pad": 1}
        axes.text(x0, y0, f"{names[label]} {score:.2f}", fontsize=9, verticalalignment="bottom", bbox=background)
    axes.set_xlim(0, image.width)
    axes.set_ylim(image.height, 0)
    figure.savefig(out, dpi=DPI)
