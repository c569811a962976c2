"""A picture of detected objects with their masks."""

from pathlib import Path

import numpy as np
from PIL import Image

from examples.deformable_detr.images import Objects
from examples.deformable_detr.pictures import PALETTE, draw_objects

OPACITY = 0.45


def draw(path: Path, image: Image.Image, objects: Objects, masks: np.ndarray | None, names: list[str]) -> None:
    """Draws the objects of an image, and their masks [n, height, width] if there are any, and writes it to a file."""
    if masks is not None:
        pixels = np.asarray(image, np.float32)
        for mask, label in zip(masks[::-1], objects.labels[::-1], strict=True):  # the best on top
            colour = 255 * np.float32(PALETTE(int(label) % PALETTE.N)[:3])
            pixels = np.where(mask[..., None], (1 - OPACITY) * pixels + OPACITY * colour, pixels)
        image = Image.fromarray(pixels.round().astype(np.uint8))
    draw_objects(path, image, objects, names)
