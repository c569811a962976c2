"""Reads files of images by Pillow, in RGB and turned as their EXIF data say."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import BITSPERSAMPLE, EXTRASAMPLES, PHOTOMETRIC_INTERPRETATION

FORMATS = ("JPEG", "PNG", "TIFF", "WEBP", "GIF", "BMP", "PPM", "JPEG2000", "AVIF")  # as Pillow names them
TURNS = {  # by the orientation
    **{2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM},
    **{5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE},
    8: Image.Transpose.ROTATE_90,
}
MIN_IS_WHITE, UNSPECIFIED = 0, 0  # values of PHOTOMETRIC_INTERPRETATION and EXTRASAMPLES
NAMED: dict[str, Path] = {}  # the images that `_name_first` has logged, by what it says of them


class ImageError(ValueError):
    """An image file that cannot be used."""


class DamagedError(ImageError):
    """An image file whose content cannot be used, at any time."""


def opened(path: Path) -> Image.Image:
    """The image in a file, as by `_rgb`. Raises ImageError, which names the file, if it cannot be read.

    The error is a DamagedError unless it comes from the operating system.
    """
    with _naming(path):
        image = _header(path)
        turn = TURNS.get(_orientation(image))  # before the pixels are decoded, with which Pillow turns a TIFF file
        pixels = _rgb(image, path)
        return pixels if turn is None else pixels.transpose(turn)


def turned_size(path: Path) -> tuple[int, int]:
    """The width and height of the image that `opened` returns, without decoding it. Raises the same errors."""
    with _naming(path):
        image = _header(path)
        return image.size[:: -1 if _orientation(image) > 4 else 1]


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # damaged files cause errors of many kinds
        is_of_system = isinstance(error, MemoryError) or getattr(error, "errno", None) is not None
        raise (ImageError if is_of_system else DamagedError)(f"{path} must be an image: {error}") from error


def _header(path: Path) -> ImageFile:
    """An image whose pixels are not decoded yet."""
    try:
        return Image.open(BytesIO(path.read_bytes()), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise ValueError(f"its format must be one of {', '.join(FORMATS)}") from error


def _orientation(image: ImageFile) -> int:
    """The orientation by EXIF; 1, which turns nothing, if it is missing or damaged, or if Pillow turns the image."""
    exif = Image.Exif()
    try:
        exif.load(image.info.get("exif") or b"")
        found = exif.get(ExifTags.Base.Orientation)
    except Exception:  # damaged metadata cause errors of many kinds
        return 1
    return found if found in TURNS else 1


def _rgb(image: ImageFile, path: Path) -> Image.Image:
    """An image of 8 to 16 bits a channel in RGB; the highest 8 bits are kept.

    Logged is the first image of the process whose highest 4 of 16 bits are not used, and the first with channels of
    unknown meaning.
    """
    is_deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM")  # of 16 bits in PIL
    if image.mode in ("I", "F") and not is_deep:
        raise ValueError(f"it must have 8 or 16 bits a channel, without a sign, got PIL's mode {image.mode}")
    tags = getattr(image, "tag_v2", {})  # of TIFF
    if UNSPECIFIED in tags.get(EXTRASAMPLES, ()):
        _name_first(path, "has channels of unknown meaning, which are not used")
    pixels: Image.Image = image
    if is_deep:
        (depth,), values = tags.get(BITSPERSAMPLE, [16]), np.asarray(image)
        if tags.get(PHOTOMETRIC_INTERPRETATION) == MIN_IS_WHITE:
            values = 2**depth - 1 - values
        if depth == 16 and values.max() < 2**12:
            _name_first(path, "has 16 bits a channel, of which the highest 8 are used, but no value above 4095")
        pixels = Image.fromarray((values >> (depth - 8)).astype(np.uint8))
    pixels.info.pop("transparency", None)  # which is not used, and of which Pillow may warn
    return pixels.convert("RGB")


def _name_first(path, what):
    if NAMED.setdefault(what, path) is path:
        logging.getLogger(__name__).warning("%s %s", path, what)
