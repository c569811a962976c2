"""What the trainers share: annotations, augmentations and gradients."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from examples.library import augment
from examples.library.augment import Example
from examples.library.coco import NAMED, ImageError, open_image, opened, read
from examples.library.gradients import gradients
from examples.library.objects import draw_box, pictures

pytestmark = pytest.mark.platforms("cpu")


@pytest.fixture
def folder(tmp_path):
    Image.new("RGB", (20, 10)).save(tmp_path / "a.png")
    return tmp_path


def data(folder, **image):
    """An image with an object; image: other fields of it."""
    content = {
        "images": [{"id": 1, "file_name": "a.png", "width": 20, "height": 10} | image],
        "categories": [{"id": 3, "name": "cat"}],
        "annotations": [{"id": 7, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4]}],
    }
    (folder / "annotations.json").write_text(json.dumps(content))
    return read(folder / "annotations.json", folder)


def test_images_that_do_not_fit(folder, monkeypatch):
    dataset = data(folder, width=40)
    with pytest.raises(ValueError, match="must have the width and height 40 x 10 of its annotations, got 20 x 10"):
        open_image(dataset, 1)
    whole = (folder / "a.png").read_bytes()
    for damaged in (b"no image", b"", whole[:40], whole[:8] + b"\0\0\0\5" + whole[12:]):
        (folder / "a.png").write_bytes(damaged)
        with pytest.raises(ImageError, match=r"a.png must be an image"):
            open_image(dataset, 1)
    for mode in ("I", "F"):
        Image.new(mode, (20, 10)).save(folder / "a.tif")
        with pytest.raises(ImageError, match=r"a.tif must be an image: it must have 8 or 16 bits a channel"):
            opened(folder / "a.tif")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 99)
    (folder / "a.png").write_bytes(whole)
    with pytest.raises(ImageError, match=r"a.png has too many pixels: .* Make it smaller, or cut it into several"):
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


def test_turned_images(folder):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.new("RGB", (10, 20)).save(folder / "a.png", exif=exif)
    assert open_image(data(folder), 1).size == (20, 10)


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


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_gradients_of_parts(parts):
    """Means over the parts, each of which sees what the one before handed on."""
    params, batch = {"x": jnp.float32(2)}, np.arange(6, dtype=np.float32)

    def loss(params, carry, part, number):
        return {"a": (params["x"] * part).mean(), "b": params["x"] ** 2}, carry + part.sum() + 10 * number

    slopes, found, carry = jax.jit(gradients, static_argnums=(0, 4))(loss, params, jnp.float32(0), batch, parts)
    assert_allclose(slopes["x"], 2.5 + 4)
    assert_allclose((found["a"], found["b"]), (5, 4))
    assert_allclose(carry, 15 + 10 * sum(range(parts)))


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
