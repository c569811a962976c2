"""Non-maximum suppression beside that of torchvision."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_dcn
from benchmarks.baselines import Call, pytorch

IMAGE, SIDES, THRESHOLD = (1333, 800), (16, 200), 0.5


class Shape(NamedTuple):
    boxes: int
    classes: int  # 1: none are passed
    outputs: int


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
