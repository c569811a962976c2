"""A page that is unwarped: by a network that is made here, and by UVDoc beside its package where this is installed."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime

import jax_dcn
from examples import unwarp

pytestmark = pytest.mark.platforms("cpu")
HEIGHT, WIDTH = 90, 60


def page():
    """Lines of text, as dark stripes on light paper."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    dark = (y % 10 < 4) & (x % 7 < 5) & (x > 5) & (x < WIDTH - 5)
    return np.where(dark[..., None], [40, 40, 60], [240, 235, 220]).astype(np.uint8)


def bent(rows=45, columns=31):
    """Where the points of a page lie in a photograph of it: its lines are waves, and there is a border around it."""
    y, x = np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, columns), indexing="ij")
    return np.stack([0.85 * x, 0.8 * y + 0.08 * np.sin(3 * x)], -1).astype(np.float32)


def network(path, points, kind=onnx.TensorProto.FLOAT16):
    """Writes an ONNX model that finds the same points in every image."""
    make = onnx.helper
    dtype = make.tensor_dtype_to_np_dtype(kind)
    constant = onnx.numpy_helper.from_array(points.transpose(2, 0, 1)[None].astype(dtype))
    image = make.make_tensor_value_info("input", kind, [1, 3, *unwarp.SIZE])
    found = make.make_tensor_value_info("points", kind, None)
    graph = make.make_graph([make.make_node("Constant", [], ["points"], value=constant)], "", [image], [found])
    onnx.save(make.make_model(graph, ir_version=10, opset_imports=[make.make_opsetid("", 20)]), path)
    return path


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image, float)


def photographed():
    """The photograph of `page`, whose points are at the positions of `bent`."""
    y, x = np.meshgrid(np.linspace(-1, 1, HEIGHT), np.linspace(-1, 1, WIDTH), indexing="ij")
    of_page = x / 0.85
    inverse = np.stack([of_page, (y - 0.08 * np.sin(3 * of_page)) / 0.8], -1)
    found = jax_dcn.grid_sample(jnp.asarray(page(), jnp.float32), inverse.astype(np.float32), align_corners=True)
    return np.asarray(found).round().astype(np.uint8)


@pytest.mark.parametrize("kind", [onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT])
def test_the_command_unwarps_a_page(kind, tmp_path, capsys):
    Image.fromarray(photographed()).save(tmp_path / "photo.png")
    out, picture = tmp_path / "page.png", tmp_path / "both.png"
    model = network(tmp_path / "net.onnx", bent(), kind)
    files = {"--network": model, "--out": out, "--picture": picture}
    unwarp.main([str(tmp_path / "photo.png"), *(str(one) for pair in files.items() for one in pair)])
    assert f"The page is in {out}, and both are in {picture}.\n" in capsys.readouterr().out
    before, after = (np.abs(pixels(path) - page()).mean() for path in (tmp_path / "photo.png", out))
    assert after < 0.25 * before
    assert pixels(picture).shape[1] > 1000


def test_what_is_no_network(tmp_path, refusal):
    Image.fromarray(page()).save(tmp_path / "photo.png")
    (tmp_path / "text.onnx").write_text("text")
    for path, message in [
        (tmp_path / "text.onnx", "text.onnx must be UVDoc's network as an ONNX file"),
        (tmp_path / "none.onnx", "none.onnx must be UVDoc's network as an ONNX file"),
        (
            network(tmp_path / "three.onnx", np.zeros((4, 5, 3))),
            "must return points [1, 2, rows, columns] first, got the",
        ),
    ]:
        assert message in refusal(unwarp.main, tmp_path / "photo.png", "--network", path)


@pytest.mark.slow
def test_the_package_samples_the_same_page(packaged):
    network = packaged(*unwarp.NETWORK)
    photograph = Image.fromarray(np.kron(photographed(), np.ones((8, 8, 1), np.uint8)))
    points = unwarp.load(network)(photograph)
    found = unwarp.unwarp(np.asarray(photograph), points)
    session = onnxruntime.InferenceSession(network.parent / "bilinear_unwarping.onnx")
    operands = {
        "warped_img": np.asarray(photograph, np.float32).transpose(2, 0, 1)[None] / 255,
        "point_positions": points.transpose(2, 0, 1)[None],
        "img_size": np.array(photograph.size),
    }
    expected = session.run(None, operands)[0][0].transpose(1, 2, 0) * 255
    inside = (
        np.abs(np.asarray(jax_dcn.resize(jnp.asarray(points), photograph.size[::-1], align_corners=True))).max(-1) < 1
    )
    assert inside.mean() > 0.5
    assert_allclose(np.asarray(found)[inside], expected[inside], atol=0.6)
