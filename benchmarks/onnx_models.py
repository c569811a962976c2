"""`python -m benchmarks.onnx_models`: whole detectors, exported to ONNX and run by ONNX Runtime and OpenVINO.

It compares their boxes with those of JAX, and their time for an image.
"""

import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.baselines import Call
from benchmarks.detr_training import R18, SMALL
from benchmarks.measurements.timing import interleaved
from benchmarks.reports.formatting import markdown, milliseconds, paragraph
from benchmarks.reports.report import facts, parser, write_page
from benchmarks.support.machine import load, machine
from examples.detector.model import Detector
from examples.detr import weights
from examples.rcnn.config import Config, ObjectLimits, Proposals
from examples.rcnn.detector import RCNN
from examples.rcnn.rpn import take
from jax_dcn import interop, nms

ABOUT = """\
Milliseconds for one image in float32: the median of calls that take turns, with the smallest and the largest. Each
runtime uses all cores. Weights are random. The differences are the largest from JAX, of boxes in pixels and of scores
or logits. The list below says why a runtime does not take a model."""
HEAD = ("model", "runtime", "ms", "boxes differ by", "scores differ by")


class Model(NamedTuple):
    """detect: from images [batch, side, side, 3] to boxes, scores and perhaps labels; unit: pixels of a box' unit."""

    detect: Callable[[jax.Array], tuple[jax.Array, ...]]
    side: int
    unit: float = 1.0


def random_weights(shapes: Any) -> Any:
    """Random arrays with which activations keep their scale, and which offsets depend on."""
    random = np.random.default_rng(0)

    def of_leaf(path: Any, leaf: Any) -> jax.Array:
        if path[-1].key in ("scale", "var"):
            values = random.uniform(0.5, 1, leaf.shape)
        else:
            fan_in = np.prod(leaf.shape[:-1]) if leaf.ndim > 1 else 100
            values = random.normal(size=leaf.shape) * fan_in**-0.5
        return jnp.asarray(values, leaf.dtype)

    return jax.tree_util.tree_map_with_path(of_leaf, shapes)


def faster_rcnn(depth: int, side: int, **settings: Any) -> Model:
    """ResNet with deformable convolutions, FPN and Faster R-CNN."""
    model = RCNN(Config(depth=depth, masks=False, **settings))
    variables = random_weights(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, side, side, 3))))
    return Model(lambda images: model.apply(variables, images)[:3], side)


def rt_detr(config: dict[str, Any], side: int) -> Model:
    """RT-DETRv2, whose boxes are fractions of the image."""
    model = weights.make_model(weights.with_labels(config, [str(index) for index in range(10)]))
    variables = random_weights(weights.shapes(model))

    def detect(images: jax.Array) -> tuple[jax.Array, ...]:
        found = model.apply(variables, images / 255)
        return found.boxes, found.logits

    return Model(detect, side, unit=side)


def anchor_free(operator: Any, side: int) -> Model:
    """The detector of digits, with non-maximum suppression of each class."""
    model = Detector(10, operator)
    params = random_weights(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, side, side, 3))))

    def detect(images: jax.Array) -> tuple[jax.Array, ...]:
        logits, boxes = model.apply(params, images)
        scores, labels = jax.nn.sigmoid(logits).max(-1), logits.argmax(-1)
        kept, valid = nms(boxes, scores, 0.5, max_outputs=20, classes=labels)
        return take(boxes, kept), jnp.where(valid, take(scores, kept), 0), take(labels, kept)

    return Model(detect, side)


TINY = {
    "Faster R-CNN": partial(
        faster_rcnn,
        50,
        64,
        classes=5,
        channels=32,
        hidden=64,
        proposals=Proposals(100, 50),
        objects=ObjectLimits(0.0, count=20),
    ),
    "RT-DETRv2": partial(rt_detr, SMALL | {"num_queries": 20, "decoder_layers": 2}, 96),
    "anchor-free, DeformConv": partial(anchor_free, "deformable", 32),
    "anchor-free, DCNv3": partial(anchor_free, "dcnv3", 32),
    "anchor-free, DCNv4": partial(anchor_free, "dcnv4", 32),
}
MODELS = {
    "Faster R-CNN, ResNet-50-DCN, FPN, 320²": partial(
        faster_rcnn, 50, 320, proposals=Proposals(300, 300), objects=ObjectLimits(0.02)
    ),
    "RT-DETRv2-R18, 320²": partial(rt_detr, R18, 320),
    "anchor-free, DeformConv, 128²": partial(anchor_free, "deformable", 128),
    "anchor-free, DCNv3, 128²": partial(anchor_free, "dcnv3", 128),
    "anchor-free, DCNv4, 128²": partial(anchor_free, "dcnv4", 128),
}


def images_of(model: Model, batch: int = 1) -> np.ndarray:
    return np.random.default_rng(1).uniform(0, 255, (batch, model.side, model.side, 3)).astype(np.float32)


def box_difference(model: Model, boxes: Any, expected: Any) -> float:
    """The largest distance, in pixels, of a box [batch, n, 4] from the nearest of the other set.

    Rounding may swap boxes whose scores are nearly equal.
    """
    distances = np.abs(np.asarray(boxes)[:, :, None] - np.asarray(expected)[:, None]).max(-1) * model.unit
    return float(max(distances.min(1).max(), distances.min(2).max()))


def onnx_runtime(proto: Any) -> Callable[[np.ndarray], list[np.ndarray]]:
    """The model as a function, in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    (name,) = (given.name for given in session.get_inputs())
    return lambda images: session.run(None, {name: images})


def openvino(proto: Any) -> Callable[[np.ndarray], list[np.ndarray]]:
    """The model as a function, in OpenVINO, which would compute in bfloat16 by default where the processor can."""
    # In CI it sends no telemetry when it is imported: its forked process may deadlock beside threads of JAX.
    with mock.patch.dict(os.environ, {"CI": "true"}):
        import openvino

    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(proto.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    return lambda images: list(compiled([images]).values())


RUNTIMES = {"ONNX Runtime": onnx_runtime, "OpenVINO": openvino}


def rows(name: str, make: Callable[[], Model], repeats: int) -> tuple[list[list[str]], list[str]]:
    """The rows of a model, and why runtimes do not take it."""
    model = make()
    images = images_of(model)
    proto = interop.model_to_onnx(model.detect, [images.shape])
    compiled = jax.jit(model.detect).lower(images).compile()
    calls = {"JAX": Call(partial(compiled, images))}
    reasons = []
    for runtime, run in RUNTIMES.items():
        try:
            calls[runtime] = Call(partial(run(proto), images))
        except (ImportError, RuntimeError) as error:
            reasons.append(f"{name}, {runtime}: {str(error).strip().splitlines()[-1]}")
    expected = compiled(images)
    found = {runtime: call() for runtime, call in calls.items()}
    seconds = interleaved(calls, repeats)

    def row(runtime: str) -> list[str]:
        if runtime not in calls:
            return [name, runtime, "not taken", "", ""]
        boxes, scores, *_ = found[runtime]
        box_error, score_error = box_difference(model, boxes, expected[0]), np.abs(scores - expected[1]).max()
        return [name, runtime, milliseconds({"seconds": seconds}, runtime), f"{box_error:.1g}", f"{score_error:.1g}"]

    return [row(runtime) for runtime in ("JAX", *RUNTIMES)], reasons


def main(arguments=None):
    options = parser("onnx_models", __doc__)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="which (all)")
    options.add_argument("--repeats", type=int, default=7, help="how often each program is timed")
    args = options.parse_args(arguments)
    about = machine() | {name: version(name) for name in ("jax2onnx", "openvino")} | {"load average before": load()}
    found = [rows(name, MODELS[name], args.repeats) for name in args.models]
    about["load average after"] = load()
    table = markdown([HEAD, *(row for part, _ in found for row in part)])
    reasons = "\n".join(f"- {reason}" for _, part in found for reason in part)
    sections = [facts(about), paragraph(ABOUT), table, *filter(None, [reasons])]
    write_page(args.out, f"{jax.default_backend()}-onnx-models", "Detectors in ONNX", sections)


if __name__ == "__main__":
    main()
