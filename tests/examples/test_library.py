"""What the trainers share: annotations and augmentations."""

import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from examples.library import augment
from examples.library.augment import Example
from examples.library.coco import open_image, read
from examples.library.objects import draw_box, pictures
from examples.library.photographs import NAMED, ImageError, opened, turned_size
from tests.helpers import coco

pytestmark = pytest.mark.platforms("cpu")


@pytest.fixture
def folder(tmp_path):
    Image.new("RGB", (20, 10)).save(tmp_path / "a.png")
    return tmp_path


def test_images_that_do_not_fit(tmp_path):
    dataset = read(*coco.write(tmp_path, [(20, 10)], [(1, 1, [1, 2, 3, 4])], width=40))
    with pytest.raises(ValueError, match="must have the width and height 40 x 10 of its annotations, got 20 x 10"):
        open_image(dataset, 1)


@pytest.mark.parametrize("mode", ["RGBA", "RGBX"])
def test_channels_that_are_not_used(mode, folder, caplog):
    Image.new(mode, (20, 10), (1, 2, 3, 4)).save(folder / "a.tif")
    NAMED.clear()
    for _ in range(2):
        assert opened(folder / "a.tif").getpixel((0, 0)) == (1, 2, 3)
    said = f"{folder}/a.tif has channels of unknown meaning, which are not used"
    assert caplog.messages == [said] * (mode == "RGBX")


def test_names_that_look_like_mathematics(tmp_path):
    figure = Figure()
    draw_box(figure.subplots(), np.array([0, 0, 1, 1]), "red", r"$\left$")
    figure.savefig(tmp_path / "a.png")


PIXELS = np.stack(np.broadcast_arrays(np.arange(10)[:, None] * 25, np.arange(20) * 12, 99), -1).astype(np.uint8)
PHOTO, OTHER = Image.fromarray(PIXELS), Image.new("RGB", (20, 10), "red")
TURNED = [PIXELS, PIXELS[:, ::-1], PIXELS[::-1, ::-1], PIXELS[::-1], PIXELS.swapaxes(0, 1)]
TURNED += [np.rot90(PIXELS, -1), np.rot90(PIXELS, 2).swapaxes(0, 1), np.rot90(PIXELS)]


def saved(kind, image=PHOTO, *, frames=False, orientation=None, **options):
    file = BytesIO()
    # Pillow leaves settings of a format in the images that it saves.
    others = {"save_all": True, "append_images": [OTHER.copy()]} if frames else {}
    if orientation is not None:
        others["exif"] = Image.Exif()
        others["exif"][0x0112] = orientation
    image.copy().save(file, kind, **others, **options)
    return file.getvalue()


def decoded(content):
    return np.asarray(Image.open(BytesIO(content)).convert("RGB"))


GREY, PALETTE = PHOTO.convert("L"), PHOTO.quantize(16)
JPEG, CMYK = saved("JPEG"), saved("JPEG", PHOTO.convert("CMYK"))
XMP = b"<x tiff:Orientation='6' tiff:Orientation=\"6\"/>"
READ = {  # a file, and its pixels unless they are PIXELS
    "JPEG, orientation in XMP": (saved("JPEG", xmp=XMP), decoded(JPEG)),
    "JPEG, CMYK as Adobe inverts it": (CMYK, decoded(CMYK)),
    "JPEG, grey": (saved("JPEG", GREY), decoded(saved("JPEG", GREY))),
    "MPO": (saved("MPO", frames=True), decoded(JPEG)),
    "PNG, several frames": saved("PNG", frames=True),
    "PNG, palette with transparency": (saved("PNG", PALETTE, transparency=bytes(range(9))), PALETTE.convert("RGB")),
    "PNG, transparency": saved("PNG", Image.fromarray(np.dstack([PIXELS, PIXELS[..., 0]]))),
    "PNG, grey and transparency": (saved("PNG", GREY.convert("LA")), np.dstack([GREY] * 3)),
    "PNG, one bit": (saved("PNG", GREY.convert("1")), np.dstack([np.uint8(GREY.convert("1")) * 255] * 3)),
    "PNG, damaged EXIF": saved("PNG", exif=b"Exif\0\0MM\0*\0\0\0\xff\0\1"),
    "TIFF, several pages": saved("TIFF", compression="tiff_lzw", frames=True),
    "TIFF, large file format": saved("TIFF", big_tiff=True),
    "TIFF, CMYK": (saved("TIFF", PHOTO.convert("CMYK")), PHOTO.convert("CMYK").convert("RGB")),
    "WebP, several frames": saved("WEBP", lossless=True, frames=True),
    "GIF, several frames": (saved("GIF", PALETTE, frames=True), PALETTE.convert("RGB")),
    **{kind: saved(kind) for kind in ("BMP", "PPM", "JPEG2000")},
    **{f"PNG, orientation {n}": (saved("PNG", orientation=n), turned) for n, turned in enumerate(TURNED, 1)},
    **{f"PNG, orientation {wrong}": saved("PNG", orientation=wrong) for wrong in (0, 9)},
    "JPEG, orientation": (saved("JPEG", orientation=6), np.rot90(decoded(JPEG), -1)),
    "TIFF, compressed, orientation": (saved("TIFF", compression="tiff_lzw", tiffinfo={0x0112: 6}), TURNED[5]),
    "TIFF, large file format, orientation": (saved("TIFF", big_tiff=True, tiffinfo={0x0112: 6}), TURNED[5]),
    "WebP, orientation": (saved("WEBP", lossless=True, orientation=6), TURNED[5]),
}


@pytest.mark.parametrize("kind", READ)
def test_photographs_that_are_read(kind, tmp_path, caplog):
    """The name may say another format. Each warning of Pillow would be an error here."""
    content, expected = READ[kind] if isinstance(READ[kind], tuple) else (READ[kind], PIXELS)
    (tmp_path / "A.JPG").write_bytes(content)
    assert_array_equal(np.asarray(opened(tmp_path / "A.JPG")), expected)
    assert turned_size(tmp_path / "A.JPG") == np.shape(expected)[1::-1]
    assert not caplog.messages


CHANGED = bytearray(saved("PNG"))
CHANGED[-20] ^= 1  # in the compressed pixels
HUGE = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 90_000, 8, 2, 0, 0, 0)
NOISE = Image.effect_noise((40, 40), 90).convert("RGB")
WHOLE = {kind: saved(kind, NOISE) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "PPM", "TIFF")}
FORMAT = "its format must be one of JPEG, PNG, "
REFUSED = {
    "empty": (b"", FORMAT),
    "text": (b"no image", FORMAT),
    "HEIC": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", FORMAT),
    "PNG, damaged pixels": (bytes(CHANGED), ""),
    "PNG, too many pixels": (
        saved("PNG")[:12] + HUGE + struct.pack(">I", zlib.crc32(HUGE)) + saved("PNG")[33:],
        "Image",
    ),
    **{f"half a {kind}": (content[: len(content) // 2], "") for kind, content in WHOLE.items()},
    "TIFF of integers": (saved("TIFF", GREY.convert("I")), "it must have 8 or 16 bits a channel"),
    "TIFF of floating-point numbers": (saved("TIFF", GREY.convert("F")), "it must have 8 or 16 bits a channel"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_photographs_that_are_refused(kind, tmp_path):
    content, message = REFUSED[kind]
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ImageError, match=f"a.png must be an image: {message}"):
        opened(tmp_path / "a.png")


BITS = b"\x02\x01\x03\0\x01\0\0\0"  # how a TIFF file begins to say how many bits a sample has


@pytest.mark.parametrize(
    ("name", "value", "tags", "change", "expected"),
    [
        ("a.tif", 0x8888, {}, (b"", b""), 0x88),
        ("a.tif", 0x8888, {262: 0}, (b"", b""), 0x77),  # of which 0 is white
        ("a.tif", 0x8888, {}, (BITS + b"\x10", BITS + b"\x0c"), 0x88),  # 12 bits
        ("a.pgm", 0x8888, {}, (b"", b""), 0x88),
        ("a.png", 0x0888, {}, (b"", b""), 0x08),
    ],
)
def test_which_bits_are_used(name, value, tags, change, expected, folder, caplog):
    Image.fromarray(np.full((10, 20), value, np.uint16)).save(folder / name, tiffinfo=tags)
    written = (folder / name).read_bytes()
    assert change[0] in written
    (folder / name).write_bytes(written.replace(*change, 1))
    NAMED.clear()
    for _ in range(2):
        assert_array_equal(np.asarray(opened(folder / name)), expected)
    said = f"{folder}/a.png has 16 bits a channel, of which the highest 8 are used, but no value above 4095"
    assert caplog.messages == [said] * (expected == 0x08)


def scene(seed):
    """A dark image with two bright rectangles, and their boxes."""
    random = np.random.default_rng(seed)
    image = np.full((60, 80, 3), 10, np.uint8)
    boxes = np.float32([[8, 10, 30, 34], [44, 20, 70, 50]]) + random.integers(-3, 4, (2, 1))
    for (x0, y0, x1, y1), colour in zip(boxes.astype(int), (160, 230), strict=True):
        image[y0:y1, x0:x1] = colour
    return Example(image, boxes, np.int32([0, 1]))


@pytest.mark.parametrize(
    "change", [augment.mirror, augment.zoom_out, augment.iou_crop, lambda *of: augment.random_crop(*of, (30, 50))]
)
def test_boxes_follow_the_pixels(change):
    changes = 0
    for seed in range(20):
        example = scene(seed)
        found = augment.sanitise(change(example, np.random.default_rng(seed)))
        changes += found.image.shape != example.image.shape or not np.array_equal(found.image, example.image)
        for box, label in zip(found.boxes, found.labels, strict=True):
            rows, columns = (np.flatnonzero((found.image[..., 0] == (160, 230)[label]).any(axis)) for axis in (1, 0))
            assert_allclose(box, [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
    assert 0 < changes <= 20


def test_resizing_and_colours():
    example = scene(0)
    assert_allclose(augment.resize(example, 120, 40).boxes, example.boxes * [0.5, 2, 0.5, 2])
    distorted = [augment.photometric_distort(example, np.random.default_rng(seed)) for seed in range(10)]
    assert len({one.image.tobytes() for one in distorted}) > 5
    assert all(one.image.dtype == np.uint8 and np.array_equal(one.boxes, example.boxes) for one in distorted)


def test_pictures_of_files_and_folders(folder, capsys):
    out = folder / "out.png"
    assert pictures([folder / "a.png"], out) == [(folder / "a.png", out)]
    (folder / "b.JPG").write_bytes(b"")
    (folder / "notes.txt").write_text("")
    expected = [(folder / name, folder / "out" / f"{name}.png") for name in ("a.png", "b.JPG")]
    assert pictures([folder], out) == expected
    assert pictures([folder / "a.png", folder / "b.JPG"], folder / "out") == expected
    assert pictures([folder / "a.png"], folder / "found") == [(folder / "a.png", folder / "found" / "a.png.png")]
    (folder / "of.jpg").mkdir()
    (folder / "of.jpg" / "notes.txt").write_text("")
    assert pictures([folder / "a.png"], folder / "of.jpg") == [(folder / "a.png", folder / "of.jpg" / "a.png.png")]
    for image in (folder / "a.png", folder):
        with pytest.raises(ValueError, match=r"--out must be none of the images, got "):
            pictures([image], image)
    with pytest.raises(ValueError, match=r"images must have names of their own, got a.png twice"):
        pictures([folder, folder / "a.png"], out)
    (folder / "empty").mkdir()
    capsys.readouterr()
    assert pictures([folder / "empty", folder / "of.jpg", folder / "a.png"], out) == expected[:1]
    counts = ("empty", 0), ("of.jpg", 1)
    of_folders = [
        f"{folder}/{name} has 0 images. {count} entries with other names are skipped." for name, count in counts
    ]
    assert capsys.readouterr().out.splitlines() == of_folders
    with pytest.raises(ValueError, match=r"the folders must have images, got .*empty"):
        pictures([folder / "empty"], out)
