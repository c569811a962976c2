"""Reads files of images, whatever their metadata says. docs/annotations.md has a table of what is read.

Pillow parses metadata that no pixel depends on. It fails or warns if they are damaged, and Python cannot ignore a
warning in one thread only. So Pillow gets a copy of the file without metadata, and the orientation is read here.
"""

import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import BITSPERSAMPLE, EXTRASAMPLES, PHOTOMETRIC_INTERPRETATION

FORMATS = ("JPEG", "PNG", "TIFF", "WEBP", "GIF", "BMP", "PPM", "JPEG2000", "AVIF")  # as Pillow names them
MOST_PIXELS = 178_956_970  # Pillow's limit by default
PNG, PNG_CHUNKS = b"\x89PNG\r\n\x1a\n", {b"IHDR", b"PLTE", b"IDAT", b"IEND"}
# JPEG's markers of the first pixels and of metadata, and the metadata that says how colours are stored.
SCAN, METADATA, COLOURS = 0xDA, {*range(0xE0, 0xF0), 0xFE}, {0xE0: b"JFIF\0", 0xEE: b"Adobe"}
EXIF = b"Exif\0"  # at the beginning of metadata in JPEG and others, followed by any byte and by a TIFF file
TIFFS = {b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"}
# The tags of TIFF that say how pixels are stored. The orientation is not among them.
TIFF_TAGS = {*range(255, 260), 262, 266, 273, *range(277, 280), 284, 292, 293, 317, *range(320, 326)}
TIFF_TAGS |= {*range(332, 342), 347, *range(512, 522), *range(529, 533)}
ORIENTATION, INTEGERS = 0x0112, {1: "B", 3: "H", 4: "I"}  # the tag, and the types of TIFF that it may have
FLIP = Image.Transpose
TURNS = (  # by the orientation
    *(None, None, FLIP.FLIP_LEFT_RIGHT, FLIP.ROTATE_180, FLIP.FLIP_TOP_BOTTOM),
    *(FLIP.TRANSPOSE, FLIP.ROTATE_270, FLIP.TRANSVERSE, FLIP.ROTATE_90),
)
MIN_IS_WHITE, UNSPECIFIED = 0, 0  # values of PHOTOMETRIC_INTERPRETATION and EXTRASAMPLES
NAMED: dict[str, Path] = {}  # the images that `_name_first` has logged, by what it says of them

Image.init()  # fills Image.OPEN


class ImageError(ValueError):
    """An image file that cannot be used."""


class DamagedError(ImageError):
    """An image file whose content cannot be used, at any time."""


def opened(path: Path) -> Image.Image:
    """The image in a file, as by `_rgb`. Raises ImageError, which names the file, if it cannot be read.

    The error is a DamagedError unless it comes from the operating system.
    """
    with _naming(path):
        return _rgb(*_header(path), path)


def turned_size(path: Path) -> tuple[int, int]:
    """The width and height of the image that `opened` returns, without decoding it. Raises the same errors."""
    with _naming(path):
        image, orientation = _header(path)
        return image.size[:: -1 if orientation > 4 else 1]


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except DamagedError:
        raise
    except Exception as error:  # damaged files cause errors of many kinds
        is_of_system = isinstance(error, MemoryError) or getattr(error, "errno", None) is not None
        raise (ImageError if is_of_system else DamagedError)(f"{path} must be an image: {error}") from error


def _header(path: Path) -> tuple[ImageFile, int]:
    """An image whose pixels are not decoded yet, and its orientation by EXIF, 1 to 8."""
    data = path.read_bytes()
    if not data:
        raise ValueError("the file is empty")
    exif = b""
    if data.startswith(PNG):
        data, exif = _plain_png(data)
    elif data.startswith(b"\xff\xd8"):
        data, exif = _plain_jpeg(data)
    elif data[:4] in TIFFS:
        data, exif = _plain_tiff(data), data
    # Image.open would warn of large images, before the limit can be checked.
    kinds = [Image.OPEN[kind] for kind in FORMATS if kind in Image.OPEN]
    factory = next((factory for factory, accepts in kinds if accepts(data[:16]) is True), None)
    is_heic = data[4:8] == b"ftyp" and b"avi" not in data[8:64]
    if factory is None or is_heic:
        found = "HEIC or another kind of HEIF: convert it to JPEG" if is_heic else f"the first bytes {data[:8]!r}"
        raise ValueError(f"its format must be one of {', '.join(FORMATS)}, got {found}")
    image = factory(BytesIO(data), "")
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise DamagedError(
            f"{path} has too many pixels: {width} x {height}, of at most {MOST_PIXELS:,}. Make it smaller, or cut it "
            "into several images."
        )
    return image, _orientation(exif or image.info.get("exif") or b"")


def _plain_png(data: bytes) -> tuple[bytes, bytes]:
    """A PNG file without metadata, transparency and all frames but the first, and its EXIF data."""
    kept, exif, begin = [PNG], b"", len(PNG)
    while begin + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, begin)
        end = begin + 12 + length
        if kind in PNG_CHUNKS:
            kept.append(data[begin:end])
        elif kind == b"eXIf":
            exif = data[begin + 8 : end - 4]
        begin = len(data) if kind == b"IEND" else end
    return b"".join(kept), exif


def _plain_jpeg(data: bytes) -> tuple[bytes, bytes]:
    """A JPEG file without metadata and all images but the first, and its EXIF data."""
    kept, exif, begin = [data[:2]], b"", 2
    while begin + 4 <= len(data) and data[begin] == 0xFF and data[begin + 1] != SCAN:
        if data[begin + 1] == 0xFF:  # any number of these bytes may be before a marker
            begin += 1
            continue
        _, marker, length = struct.unpack_from(">BBH", data, begin)
        segment = data[begin : begin + 2 + length]
        is_of_colours = marker in COLOURS and segment[4:].startswith(COLOURS[marker]) and length >= 14
        if marker not in METADATA or is_of_colours:
            kept.append(segment)
        elif marker == 0xE1 and segment[4:].startswith(EXIF):
            exif = exif or segment[4:]
        begin += 2 + length
    return b"".join([*kept, data[begin:]]), exif


def _entries(data: bytes) -> tuple[str, int, str, list[bytes]]:
    """The first directory of a TIFF file: the byte order, where the directory begins, the format of the number of its
    entries, and those that are in the file."""
    order = "<" if data[:2] == b"II" else ">"
    offset, count, size = ("8xQ", "Q", 20) if 43 in data[2:4] else ("4xI", "H", 12)
    (begin,) = struct.unpack_from(order + offset, data)
    (number,) = struct.unpack_from(order + count, data, begin)
    first = begin + struct.calcsize(count)
    last = min(first + number * size, len(data) - size + 1)
    return order, begin, count, [data[entry : entry + size] for entry in range(first, last, size)]


def _plain_tiff(data: bytes) -> bytes:
    """A TIFF file that has only the tags of its first image that say how pixels are stored."""
    order, begin, count, entries = _entries(data)
    kept = [entry for entry in entries if struct.unpack_from(order + "H", entry)[0] in TIFF_TAGS]
    directory = struct.pack(order + count, len(kept)) + b"".join(kept) + bytes(8 if count == "Q" else 4)
    return data[:begin] + directory + data[begin + len(directory) :]


def _orientation(exif: bytes) -> int:
    """The orientation in EXIF data or in a TIFF file; 1, which turns nothing, if it is missing or damaged."""
    data = exif[len(EXIF) + 1 :] if exif.startswith(EXIF) else exif
    try:
        order, _, count, entries = _entries(data) if data[:4] in TIFFS else ("<", 0, "H", [])
    except struct.error:
        return 1
    for entry in entries:
        tag, kind, number = struct.unpack_from(order + "HH" + ("Q" if count == "Q" else "I"), entry)
        if tag == ORIENTATION and kind in INTEGERS and number == 1:
            (value,) = struct.unpack_from(order + INTEGERS[kind], entry, 12 if count == "Q" else 8)
            return value if 1 <= value <= 8 else 1
    return 1


def _rgb(image: ImageFile, orientation: int, path: Path) -> Image.Image:
    """An image of 8 to 16 bits a channel in RGB, turned to its orientation; the highest 8 bits are kept.

    Logged is the first image of the process whose highest 4 of 16 bits are not used, and the first with channels of
    unknown meaning.
    """
    is_deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM")  # of 16 bits in PIL
    if image.mode in ("I", "F") and not is_deep:
        raise ValueError(f"it must have 8 or 16 bits a channel, without a sign, got PIL's mode {image.mode}")
    tags = getattr(image, "tag_v2", {})  # of TIFF
    if tags:
        image.im = Image.new(image.mode, image.size).im  # Pillow would warn before it makes a large one
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
    pixels = pixels.convert("RGB")
    turn = TURNS[orientation]
    return pixels if turn is None else pixels.transpose(turn)


def _name_first(path, what):
    if NAMED.setdefault(what, path) is path:
        logging.getLogger(__name__).warning("%s %s", path, what)
