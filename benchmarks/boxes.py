"""`python -m benchmarks.boxes`: non-maximum suppression beside that of torchvision.

It writes benchmarks/results/<date>-<platform>-boxes.md.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.baselines import Call, pytorch
from benchmarks.measurements.timing import interleaved
from benchmarks.reports.formatting import markdown, milliseconds, paragraph, ratio
from benchmarks.reports.report import facts, parser, write_page
from benchmarks.support.machine import load, machine

ABOUT = """\
Milliseconds of a call, median (min to max) of calls that take turns; speed: how many times faster jax_dcn is.
torchvision keeps all boxes, of which the first ones are compared with those of jax_dcn before anything is timed. Boxes
have sides from 16 to 200 pixels in an image of 800 x 1,333; the IoU threshold is 0.5."""
HEAD = ("boxes", "classes", "outputs", "jax_dcn", "torchvision", "speed")
IMAGE, SIDES, THRESHOLD = (1333, 800), (16, 200), 0.5


class Shape(NamedTuple):
    boxes: int
    classes: int  # 1: none are passed
    outputs: int


SHAPES = [
    Shape(1000, 1, 100),
    Shape(1000, 80, 100),
    Shape(10_000, 1, 1000),
    Shape(10_000, 80, 100),
    Shape(10_000, 1, 10_000),
    Shape(10_000, 80, 10_000),
]


def calls(shape):
    """The call of each library. Raises AssertionError unless they keep the same boxes."""
    torch, torchvision, on_cpu = pytorch.load(), pytorch.load("torchvision"), jax.default_backend() == "cpu"
    random = np.random.default_rng(0)
    size = np.exp(random.uniform(*np.log(SIDES), (shape.boxes, 2)))
    corner = random.uniform(0, IMAGE - size)
    boxes = np.concatenate([corner, corner + size], 1).astype(np.float32)
    scores = random.permutation(shape.boxes).astype(np.float32)  # all different, because their order decides
    classes = random.integers(0, shape.classes, shape.boxes).astype(np.int32)

    suppress = jax.jit(partial(jax_dcn.nms, iou_threshold=THRESHOLD, max_outputs=shape.outputs))
    given = {"classes": jnp.asarray(classes)} if shape.classes > 1 else {}
    ours = partial(suppress, jnp.asarray(boxes), jnp.asarray(scores), **given)
    arrays = [torch.tensor(array, device="cpu" if on_cpu else "cuda") for array in (boxes, scores, classes)]
    of_classes, plain = torchvision.ops.batched_nms, torchvision.ops.nms
    theirs = partial(of_classes if given else plain, *arrays[: 2 + len(given)], THRESHOLD)
    indices, valid = map(np.asarray, ours())
    np.testing.assert_array_equal(indices[valid], theirs().cpu().numpy()[: shape.outputs])
    peer = Call(theirs, wait=pytorch.waiter(torch, on_cpu), queued=not on_cpu)
    return {"jax_dcn": Call(ours, queued=not on_cpu), "torchvision": peer}


def row(shape, repeats):
    measured = {"seconds": interleaved(calls(shape), repeats)}
    times = [milliseconds(measured, name) for name in ("jax_dcn", "torchvision")]
    return [f"{number:,}" for number in shape] + [*times, ratio(measured, "torchvision", "jax_dcn")]


def main(arguments=None):
    options = parser("boxes", __doc__)
    options.add_argument("--repeats", type=int, default=15, help="how often each call is timed")
    args = options.parse_args(arguments)
    about = machine() | {"load average before": load()}
    rows = [row(shape, args.repeats) for shape in SHAPES]
    about["load average after"] = load()
    sections = [facts(about), paragraph(ABOUT), markdown([HEAD, *rows])]
    write_page(args.out, f"{jax.default_backend()}-boxes", "Non-maximum suppression", sections)


if __name__ == "__main__":
    main()
