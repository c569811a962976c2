"""A picture of detected objects."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from .images import Objects

PALETTE = matplotlib.colormaps["tab20"]
DPI = 100


def draw_objects(path: Path, image: Image.Image, objects: Objects, names: Sequence[str]) -> None:
    """Draws the boxes, with their labels and scores, on the image, and writes it to a file."""
    figure = Figure(figsize=(image.width / DPI, image.height / DPI))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(image)
    axes.set_axis_off()
    for score, label, (x0, y0, x1, y1) in zip(*objects, strict=True):
        colour = PALETTE(label % PALETTE.N)
        axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=colour, linewidth=2))
        background = {"facecolor": colour, "edgecolor": "none", "pad": 1}
        axes.text(x0, y0, f"{names[label]} {score:.2f}", fontsize=9, verticalalignment="bottom", bbox=background)
    axes.set_xlim(0, image.width)
    axes.set_ylim(image.height, 0)
    figure.savefig(path, dpi=DPI)
