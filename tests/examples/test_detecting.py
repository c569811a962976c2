"""The commands that detect objects in photographs and videos, with a detector that takes no time."""

import json
import struct
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image

from examples.library import videos
from examples.library.detecting import make_parser, run
from examples.library.objects import Objects, drawn

NOTHING = Objects(np.zeros(0), np.zeros(0, int), np.zeros((0, 4)))

pytestmark = pytest.mark.platforms("cpu")

TIMES = [0, 1, 2, 5, 9]  # of the frames, in tenths of a second


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def corner(image):
    """An object whose size says which pixel the image has in its top left corner, one with a low score, and padding."""
    size = float(np.asarray(image)[2, 2, 0] // 10 + 1)
    return Objects(np.array([0.9, 0.4, 0.0]), np.array([1, 0, 0]), np.array([[0, 0, size, size]] * 3))


def command(*arguments, detect=corner):
    options = make_parser("detect", "Detect.", "the weights").parse_args(["model", *arguments])
    run(options, detect, ["cat", "dog"])


def write_video(path, size=(64, 48), turned=False):
    """A video with a brighter corner in each frame. turned: whether the file says that it is on its side."""
    with av.open(path, "w") as file:
        stream = file.add_stream("mpeg4", rate=10)
        stream.width, stream.height = size
        stream.pix_fmt, stream.codec_context.time_base = "yuv420p", Fraction(1, 10)
        for number, time in enumerate(TIMES):
            pixels = np.full((size[1], size[0], 3), 200, np.uint8)
            pixels[:16, :16] = 45 * number + 5
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 10)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    if turned:
        data = bytearray(Path(path).read_bytes())
        matrix = data.index(b"tkhd") + 44  # from pixels of the frame to those that are shown: by a quarter clockwise
        struct.pack_into(">9i", data, matrix, *(0, 1 << 16, 0), *(-1 << 16, 0, 0), *(size[1] << 16, 0, 1 << 30))
        Path(path).write_bytes(data)


def frames(path):
    with av.open(path) as file:
        return [(frame.time, frame.to_ndarray(format="rgb24")) for frame in file.decode(video=0)]


def test_images_and_videos_of_a_folder(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    Image.new("RGB", (30, 20), (100, 0, 0)).save("in/a.jpg", quality=100)
    write_video("in/b.mp4")
    (tmp_path / "in/notes.txt").touch()
    command("in", "--out", "found", "--json", "found/all.json")
    assert {path.name for path in (tmp_path / "found").iterdir()} == {"a.jpg.png", "b.mp4.mp4", "all.json"}
    printed = capsys.readouterr().out
    assert "in has 2 images. 1 entries with other names are skipped.\n" in printed
    assert "dog                  0.900  from (0.0, 0.0) to (11.0, 11.0)\n1 objects are in found/a.jpg.png.\n" in printed
    assert "5 objects in 5 frames are in found/b.mp4.mp4.\n" in printed
    with Image.open("found/a.jpg.png") as picture:
        assert picture.size == (30, 20) and len(picture.convert("RGB").getcolors(600)) > 20
    image, *video = json.loads((tmp_path / "found/all.json").read_text())
    one = {"class": "dog", "score": 0.9, "box": [0, 0, 11, 11]}
    assert image == {"file": "in/a.jpg", "width": 30, "height": 20, "objects": [one]}
    for number, found in enumerate(video):
        assert (found["file"], found["frame"], found["width"], found["height"]) == ("in/b.mp4", number, 64, 48)
        assert found["seconds"] == pytest.approx(TIMES[number] / 10)
        assert found["objects"][0]["box"][2] == pytest.approx((45 * number + 5) // 10 + 1, abs=1)


@pytest.mark.parametrize("turned", [False, True])
def test_the_video_that_is_written(turned):
    """It has the times, the pixels and the sides of the other one, up to an even number."""
    write_video("a.mov", (66, 46), turned)
    sizes = []

    def nothing(image):
        sizes.append(image.size)
        return NOTHING

    command("a.mov", "--out", "b.mp4", detect=nothing)
    written = frames("b.mp4")
    assert {*sizes} == {(46, 66) if turned else (66, 46)}
    assert_allclose([time for time, _ in written], np.divide(TIMES, 10), atol=1e-3)
    for number, (_, pixels) in enumerate(written):
        assert pixels.shape[1::-1] == sizes[0]
        assert_allclose(pixels[-4, 4], 200, atol=12)
        assert_allclose(pixels[3, -4 if turned else 3], 45 * number + 5, atol=12)


def test_pictures_with_odd_sides():
    pixels = videos.pixels_of(drawn(Image.new("RGB", (5, 7)), NOTHING, []))
    assert pixels.shape == (8, 6, 3)


def test_names_of_outputs(tmp_path):
    """No input, no folder of inputs and no checkpoint is overwritten, and endings say what a file is."""
    for name in ("a.png", "a.png.png"):
        Image.new("RGB", (30, 20)).save(name)
    write_video("v.mp4")
    (tmp_path / "in").mkdir()
    Image.new("RGB", (30, 20)).save("in/b.png")
    (tmp_path / "model").mkdir()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    for arguments, message in {
        ("a.png", "a.png.png", "--out", "."): "--out must leave the images as they are, but a.png.png is one of them",
        ("in", "--out", "in.png"): "--out must be none of the folders of images, got in.png",
        ("v.mp4", "--out", "v.png"): "--out must leave the images as they are, but v.mp4 is one of them",
        ("v.mp4", "--out", "o.avi"): "--out of a video must end in .mp4, or be a folder, got o.avi",
        ("a.png", "--out", "o.mp4"): "--out of an image must end in .png or that of another picture, or be a folder",
        ("a.png", "--json", "a.png"): "--json must be a file of its own, but .*a.png is .*a.png or in it",
        ("a.png", "--json", "detections.png"): "--json must be a file of its own",
        ("a.png", "--json", "model/config.json"): "--json must be a file of its own, but .*json is .*model or in it",
        ("a.png", "--json", "in"): "--json must be a file, got the folder .*in",
    }.items():
        with pytest.raises(ValueError, match=message):
            command(*arguments)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before
    command("v.mp4")
    assert len(frames("detections.mp4")) == len(TIMES)


def test_files_that_cannot_be_read(tmp_path, capsys):
    """They are named, and the others are not lost."""
    for name in ("a.png", "c.png"):
        Image.new("RGB", (30, 20)).save(name)
    Path("b.png").touch()
    Path("d.mp4").write_text("text")
    with pytest.raises(ValueError, match=r"^2 of 4 files could not be read. The others were.$"):
        command("a.png", "b.png", "c.png", "d.mp4", "--out", "found", "--json", "all.json")
    assert [one["file"] for one in json.loads(Path("all.json").read_text())] == ["a.png", "c.png"]
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("b.png must be an image: its format") and said[1].startswith("d.mp4 must be a video: ")


def test_errors(tmp_path, monkeypatch):
    """They name the file, and leave no part of a video."""

    def fail(image):
        return Objects(np.array([0.5, np.nan]), np.zeros(2, int), np.zeros((2, 4)))

    write_video("a.mp4")
    with pytest.raises(ValueError, match=r"^objects found in frame 0 of a.mp4 must have finite .* got score nan and"):
        command("a.mp4", "--out", "b.mp4", detect=fail)
    with av.open("sound.mp4", "w") as file:
        stream = file.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    (tmp_path / "text.mp4").write_text("text")
    for name in ("sound.mp4", "text.mp4", "missing.mp4"):
        with pytest.raises(ValueError, match=rf"^{name} must be a video(: |, but has no pictures)"):
            command(name, "--out", "new/b.mp4")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"^a.mp4: videos need PyAV: pip install av$"):
        command("a.mp4", "--out", "b.mp4")
    assert {path.name for path in tmp_path.iterdir()} == {"a.mp4", "sound.mp4", "text.mp4"}
