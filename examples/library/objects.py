"""The objects that a detector finds in image files, and pictures of them."""

import argparse
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

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


def check_picture(parser: argparse.ArgumentParser, option: str, path: Path) -> None:
    """Ends the command with an error unless the name of a picture ends as that of a format of Matplotlib."""
    if path.suffix[1:].lower() not in FORMATS:
        parser.error(f"{option} must end in .png or that of another format, got {path}")


def pictures(images: Sequence[Path], out: Path, videos: Collection[str] = ()) -> list[tuple[Path, Path]]:
    """The image files that a command is given, and the picture to write for each.

    out: the picture of one file, or the folder of all pictures. videos: endings of files that are taken, too, for which
    videos are written, as MP4. Raises ValueError if an image would be overwritten, or its folder written to, if `out`
    has the ending of another kind of file, if two files have the same name, or if folders have no images.
    """
    if out.resolve() in [path.resolve() for path in images]:
        raise ValueError(f"--out must be none of the images, got {out}")
    if len(images) == 1 and not images[0].is_dir() and not out.is_dir() and out.suffix:
        is_video, ending = images[0].suffix.lower() in videos, out.suffix.lower()
        if ending == ".png" and is_video:
            out, ending = out.with_suffix(".mp4"), ".mp4"  # of the default, too
        if ending == ".mp4" if is_video else ending[1:] in FORMATS:
            return _without_overlap([(images[0], out)])
        if ending in {*videos} or ending[1:] in FORMATS:
            kind = "a video must end in .mp4" if is_video else "an image must end in .png or that of another picture"
            raise ValueError(f"--out of {kind}, or be a folder, got {out}")
    readable = {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN} | {*videos}
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
    if folder.resolve() in [path.resolve() for path in images]:
        raise ValueError(f"--out must be none of the folders of images, got {out}")
    twice = [name for name, count in Counter(file.name for file in files).items() if count > 1]
    if twice:
        raise ValueError(f"images must have names of their own, got {twice[0]} twice")
    return _without_overlap(
        [(file, folder / f"{file.name}{'.mp4' if file.suffix.lower() in videos else '.png'}") for file in files]
    )


def _without_overlap(found):
    """The files and their pictures. Raises ValueError if a picture would overwrite one of the files."""
    files = {file.resolve() for file, _ in found}
    for _, picture in found:
        if picture.resolve() in files:
            raise ValueError(f"--out must leave the images as they are, but {picture} is one of them")
    return found


def drawn(image: Image.Image, objects: Objects, names: Sequence[str]) -> Figure:
    """A picture of an image, of the same size, with the boxes of objects, their labels and scores, and their masks."""
    pixels = np.asarray(image, np.float32)
    if objects.masks is not None:
        for mask, label in zip(objects.masks[::-1], objects.labels[::-1], strict=True):  # the best on top
            colour = 255 * np.float32(PALETTE(int(label) % PALETTE.N)[:3])
            pixels = np.where(mask[..., None], (1 - OPACITY) * pixels + OPACITY * colour, pixels)
    figure = Figure(figsize=(image.width / DPI, image.height / DPI), dpi=DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(pixels.round().astype(np.uint8))
    axes.set_axis_off()
    for score, label, box in zip(objects.scores, objects.labels, objects.boxes, strict=True):
        draw_box(axes, box, PALETTE(int(label) % PALETTE.N), f"{names[label]} {score:.2f}")
    axes.set_xlim(0, image.width)
    axes.set_ylim(image.height, 0)
    return figure


def draw_box(axes: Axes, box: np.ndarray, colour: Any, text: str = "", size: int = 9) -> None:
    """Draws a box (x0, y0, x1, y1), and a text on its upper edge."""
    x0, y0, x1, y1 = box
    axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=colour, linewidth=2))
    background = {"facecolor": colour, "edgecolor": "none", "pad": 1} if text else None
    alignment = "bottom" if y0 > size else "top"  # inside the box, if it is at the upper edge of the image
    axes.text(x0, y0, text, fontsize=size, verticalalignment=alignment, bbox=background, parse_math=False)
