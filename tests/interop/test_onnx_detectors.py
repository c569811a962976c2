"""ONNX models of whole detectors, run by onnxruntime, which finds the boxes that JAX finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("pycocotools")

from examples.detr import weights
from examples.detr.evaluate import Detector
from examples.rcnn.config import Config, ObjectLimits, Proposals
from examples.rcnn.detector import RCNN
from jax_dcn import interop
from tests.helpers import detectors, detr_training
from tests.helpers.onnx import run as in_onnxruntime
from tests.helpers.pages import blocks

pytestmark = [
    pytest.mark.platforms("cpu"),
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore"),  # of jax2onnx
]
onnx = pytest.importorskip("onnx")
pytest.importorskip("jax2onnx")


def initialised(model, side):
    """Random variables with which activations keep their scale, and which offsets depend on."""
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, side, side, 3)))

    def of_leaf(path, leaf):
        if path[-1].key in ("scale", "var"):
            values = random.uniform(0.5, 1, leaf.shape)
        else:
            fan_in = np.prod(leaf.shape[:-1]) if leaf.ndim > 1 else 100
            values = random.normal(size=leaf.shape) * fan_in**-0.5
        return jnp.asarray(values, leaf.dtype)

    return jax.tree_util.tree_map_with_path(of_leaf, shapes)


def box_difference(boxes, expected):
    """The largest distance of a box [batch, n, 4] from the nearest of the other set: equal scores may be swapped."""
    distances = np.abs(np.asarray(boxes)[:, :, None] - np.asarray(expected)[:, None]).max(-1)
    return max(distances.min(1).max(), distances.min(2).max())


def test_faster_rcnn():
    """ResNet with deformable convolutions, FPN and Faster R-CNN, with any batch size."""
    sizes, side = dict(depth=50, classes=5, channels=32, hidden=64), 64
    model = RCNN(Config(**sizes, masks=False, proposals=Proposals(100, 50), objects=ObjectLimits(0.0, count=20)))
    variables = initialised(model, side)

    def detect(images):
        return model.apply(variables, images)[:3]

    images = np.random.default_rng(1).uniform(0, 255, (2, side, side, 3)).astype(np.float32)
    boxes, scores, *_ = in_onnxruntime(interop.model_to_onnx(detect, [("batch", side, side, 3)]), images)
    expected_boxes, expected_scores, *_ = jax.jit(detect)(images)
    assert box_difference(boxes, expected_boxes) < 0.02
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-3, atol=1e-3)


OF_TRAINING = ["deformable_detr", "deformable_detr_two_stage", "rt_detr_v2", "d_fine_simple"]


@pytest.mark.parametrize("name", [*OF_TRAINING, "lw_detr", "lw_detr_scales", "rf_detr", "deimv2_lite"])
def test_the_page_exports_a_trained_detector(name, tmp_path):
    """By its own lines, for any number of images."""
    names = {}
    (block,) = [one.text for one in blocks("docs/detection_transformers.md", "python") if "def export" in one.text]
    exec(block, names)
    folder, path, side = detr_training.FOLDER / name, tmp_path / "detector.onnx", 64
    if name not in OF_TRAINING:
        folder = detectors.write_golden(tmp_path / name, name)
    names["export"](folder, path, side)
    checkpoint, model = weights.load(folder), onnx.load(path)
    assert [one.name for one in (*model.graph.input, *model.graph.output)] == ["images", "boxes", "scores"]
    has_pooling = not name.startswith(("lw_detr", "rf_detr"))
    assert ("MaxPool" in {node.op_type for node in model.graph.node}) == has_pooling
    for count in (1, 3):
        images = np.random.default_rng(count).uniform(0, 255, (count, side, side, 3)).astype(np.float32)
        boxes, scores = in_onnxruntime(model, images)
        arguments = Detector.of(checkpoint).arguments(images, np.ones(images.shape[:3], bool))
        expected = checkpoint.model.apply(checkpoint.variables, *arguments)
        np.testing.assert_allclose(boxes, expected.boxes, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(scores, jax.nn.sigmoid(expected.logits), rtol=1e-3, atol=1e-4)
