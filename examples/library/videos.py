"""Reads the frames of a video, and writes pictures of them as a video, by PyAV."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from .files import replaced

ENDINGS = {".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".ts", ".mts", ".wmv", ".flv", ".3gp"}


class VideoError(ValueError):
    """A video that cannot be read."""


def convert(path: Path, out: Path, draw: Callable[[float, Image.Image], Figure]) -> None:
    """Writes a video with the times of another one, as MP4.

    draw: makes the picture of a frame, which has the same size, from its time in seconds and its image. Raises
    ImportError without PyAV, and VideoError, which names the file, if it is no video.
    """
    try:
        import av
    except ImportError as error:
        raise ImportError(f"{path}: videos need PyAV: pip install av") from error
    try:
        with av.open(str(path)) as source:
            if not source.streams.video:
                raise VideoError(f"{path} must be a video, but has no pictures")
            with replaced(out) as part, av.open(str(part), "w", format="mp4") as result:
                _write(result, source, draw)
    except av.FFmpegError as error:
        raise VideoError(f"{path} must be a video: {error.strerror}") from error


def _write(result, source, draw):
    import av

    written = None
    for frame in source.decode(video=0):
        image = frame.to_image().rotate(frame.rotation, expand=True)
        picture = pixels_of(draw(frame.time or 0.0, image))
        if written is None:
            written = result.add_stream("h264", rate=source.streams.video[0].average_rate or 25)
            written.height, written.width = picture.shape[:2]
            written.pix_fmt, written.codec_context.time_base = "yuv420p", frame.time_base
        after = av.VideoFrame.from_ndarray(picture, format="rgb24")
        after.pts, after.time_base = frame.pts, frame.time_base
        result.mux(written.encode(after))
    if written is None:
        raise VideoError(f"{source.name} must be a video, but has no pictures")
    result.mux(written.encode())


def pixels_of(figure: Figure) -> np.ndarray:
    """The pixels of a picture, uint8 [height, width, 3], with sides that are even, as H.264 needs them."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    odd = [side % 2 for side in pixels.shape[:2]]
    return np.ascontiguousarray(np.pad(pixels, ((0, odd[0]), (0, odd[1]), (0, 0)), mode="edge"))
