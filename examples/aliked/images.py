"""Photographs in images of one size, so that one program serves all of them."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from examples.library.coco import fitted_size
from examples.library.photographs import opened

from .keypoints import RADIUS

SIZE = (480, 640)


class Picture(NamedTuple):
    """A photograph in the middle of an image of a given size (a letterbox), padded by copies of its border.

    pixels: uint8 [height, width, 3], RGB. mask: bool [height, width], True where keypoints may be. corner: (x, y)
    of the photograph's first pixel in the image. scale: (x, y), the pixels of the image for each pixel of the
    photograph. size: (width, height) of the photograph.
    """

    pixels: np.ndarray
    mask: np.ndarray
    corner: np.ndarray
    scale: np.ndarray
    size: np.ndarray

    def in_photograph(self, positions: np.ndarray) -> np.ndarray:
        """Positions [..., 2] in the image as positions in the photograph, (x, y) in pixels."""
        return (positions - self.corner + 0.5) / self.scale - 0.5


def read(path: Path, size: tuple[int, int] = SIZE, *, turns: bool = True) -> Picture:
    """Reads a photograph and resizes it to fit into `size`, (height, width) in pixels.

    turns: exchanges height and width for a portrait where the size is that of a landscape, and the reverse. Raises
    ImageError, which names the file, if it is no image.
    """
    return fit(opened(path), size, turns=turns)


def fit(image: Image.Image, size: tuple[int, int], *, turns: bool = True) -> Picture:
    """As `read`, for a photograph in memory.

    >>> found = fit(Image.new("RGB", (100, 50)), (64, 64))
    >>> found.corner.tolist(), found.scale.tolist(), int(found.mask.sum())  # a border of 2 pixels has no keypoints
    ([0, 16], [0.64, 0.64], 1792)
    """
    if turns and (image.height - image.width) * (size[0] - size[1]) < 0:
        size = size[::-1]
    fitted = fitted_size(image.height, image.width, size)
    margins = [((whole - part) // 2, (whole - part + 1) // 2) for whole, part in zip(size, fitted, strict=True)]
    pixels = np.asarray(image.resize(fitted[::-1], Image.Resampling.BILINEAR))
    mask = np.zeros(size, bool)
    # Peaks at the borders of the whole image are left out anyway.
    rows, columns = (
        slice(low + RADIUS * (low > 0), whole - high - RADIUS * (high > 0))
        for whole, (low, high) in zip(size, margins, strict=True)
    )
    mask[rows, columns] = True
    return Picture(
        np.pad(pixels, (*margins, (0, 0)), mode="edge"),
        mask,
        np.array([margins[1][0], margins[0][0]]),
        np.divide(fitted, (image.height, image.width))[::-1],
        np.array(image.size),
    )
