"""`nms` and `fpn_levels`, against loops in numpy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jax_dcn

N = 530  # boxes: more than two of the blocks that nms works in


def numpy_nms(boxes, scores, threshold, classes=None):
    """The indices of the kept boxes, by the definition."""
    candidates = [i for i in range(len(scores)) if scores[i] > -math.inf and not np.isnan(boxes[i]).any()]
    kept = []
    for i in sorted(candidates, key=lambda i: -scores[i]):  # a stable sort
        rivals = [k for k in kept if classes is None or classes[k] == classes[i]]
        if not (ious(boxes[i], boxes[rivals]).astype(float) > threshold).any():
            kept.append(i)
    return kept


def ious(a, b):
    """The IoUs of one box with others."""
    width = np.maximum(np.minimum(a[2], b[:, 2]) - np.maximum(a[0], b[:, 0]), 0)
    height = np.maximum(np.minimum(a[3], b[:, 3]) - np.maximum(a[1], b[:, 1]), 0)
    area_a, area_b = (a[2] - a[0]) * (a[3] - a[1]), (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    with np.errstate(invalid="ignore", divide="ignore"):
        return width * height / (area_a + area_b - width * height)


def kept(*args, max_outputs=N, **options):
    """The indices of the kept boxes, and checks what follows them."""
    indices, valid = map(np.asarray, jax_dcn.nms(*args, max_outputs=max_outputs, **options))
    assert indices.dtype == np.int32 and indices.shape == valid.shape == (max_outputs,)
    count = valid.sum()
    assert valid[:count].all() and not indices[count:].any()
    return indices[:count].tolist()


def random_boxes(seed, n=N):
    generator = np.random.default_rng(seed)
    start, size = generator.uniform(0, 200, (n, 2)), generator.uniform(1, 80, (n, 2))
    return np.concatenate([start, start + size], 1).astype(np.float32), generator.uniform(size=n).astype(np.float32)


def tied(seed):
    """Boxes of a coarse grid, many of them equal, with few different scores: IoUs are small fractions."""
    generator = np.random.default_rng(seed)
    start, size = generator.integers(0, 8, (N, 2)), generator.integers(0, 5, (N, 2))
    return np.concatenate([start, start + size], 1).astype(np.float32), generator.integers(0, 4, N).astype(np.float32)


def chain():
    """Each box suppresses only the next one, so that every other is kept, across the blocks too."""
    start = np.arange(N, dtype=np.float32)
    return np.stack([start, 0 * start, start + 2, 0 * start + 1], 1), -start


def equal():
    return np.tile(np.float32([1, 2, 5, 9]), (N, 1)), np.zeros(N, np.float32)


CASES = {
    "random": lambda: random_boxes(0),
    "tied": lambda: tied(2),
    "chain": chain,
    "equal": equal,
    "one": lambda: random_boxes(3, 1),
    "a block": lambda: random_boxes(4, 256),
    "none": lambda: random_boxes(5, 0),
}


@pytest.mark.parametrize("with_classes", [False, True], ids=["one class", "classes"])
@pytest.mark.parametrize("name", CASES)
def test_a_loop_in_numpy_keeps_the_same(name, with_classes):
    boxes, scores = CASES[name]()
    classes = np.random.default_rng(6).integers(-1, 3, len(scores)) if with_classes else None
    for threshold in (0.3, 0.5):
        expected = numpy_nms(boxes, scores, threshold, classes)
        assert kept(boxes, scores, threshold, classes=classes) == expected
        assert kept(boxes, scores, threshold, classes=classes, max_outputs=7) == expected[:7]


def test_the_last_bit_of_an_iou_decides():
    """The threshold is the IoU of two boxes, which keeps both, or the next smaller number, which does not."""
    pairs = np.stack([random_boxes(seed, 40)[0] + np.float32([0, 0, 250, 250]) for seed in (11, 12)], 1)
    scores = np.float32([2, 1])
    for pair in pairs:
        (iou,) = ious(pair[0], pair[1:])
        assert 0 < iou < 1
        assert kept(pair, scores, float(iou)) == [0, 1]
        assert kept(pair, scores, np.nextafter(iou, np.float32(0))) == [0]
    # The IoU 3/10 in float32 is greater than 0.3, as torchvision finds too.
    pair = np.float32([[0, 0, 10, 1], [0, 0, 3, 1]])
    assert kept(pair, scores, 0.3) == [0]
    with jax.enable_x64(True):
        assert kept(pair.astype(np.float64), scores, 0.3) == [0, 1]


def test_special_boxes_and_scores():
    """What is never kept; boxes without area, and of infinite size."""
    boxes = np.tile(np.float32([0, 0, 4, 4]), (6, 1))
    boxes[1, 2] = math.nan
    scores = np.float32([math.nan, 9, -math.inf, 2, math.inf, 3])
    for count, expected in {6: [4], 4: [3], 3: []}.items():
        assert kept(boxes[:count], scores[:count], 0.5) == expected
    boxes = np.float32([[2, 2, 2, 5], [2, 2, 2, 5], [0, 0, 6, 6], [0, 0, math.inf, 4], [6, 6, 0, 5]])
    assert kept(boxes, np.arange(5, dtype=np.float32), 0.0) == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("boxes_type, scores_type", [("int32", "bfloat16"), ("float64", "float16")])
def test_dtypes(boxes_type, scores_type):
    boxes, scores = tied(7)
    found = kept(boxes.astype(boxes_type), jnp.asarray(scores, scores_type), 0.5)
    assert found == kept(boxes, scores, 0.5)


@pytest.mark.parametrize("max_outputs", [40, 200])  # by score, and by class
def test_transformations(max_outputs):
    boxes, scores = map(np.stack, zip(*(random_boxes(seed, 300) for seed in range(6)), strict=True))
    scores[1] = -math.inf
    scores[2, 5:] = -math.inf
    classes = np.random.default_rng(8).integers(0, 3, scores.shape)

    def suppress(boxes, scores, classes):
        return jax_dcn.nms(boxes, scores, 0.4, max_outputs=max_outputs, classes=classes)

    expected = [suppress(*arguments) for arguments in zip(boxes, scores, classes, strict=True)]
    expected = jax.tree.map(lambda *values: np.stack(values), *expected)
    batch = (2, 3)
    for function in (jax.jit(suppress), jax.vmap(jax.vmap(suppress)), jax.vmap(suppress, in_axes=1, out_axes=1)):
        arguments = (boxes.reshape(*batch, 300, 4), scores.reshape(*batch, 300), classes.reshape(*batch, 300))
        for found, value in zip(function(*arguments), expected, strict=True):
            np.testing.assert_array_equal(found, value.reshape(*batch, max_outputs))


def test_gradients_do_not_flow_through_indices():
    boxes, scores = random_boxes(9, 20)

    def loss(boxes, scores):
        indices, valid = jax_dcn.nms(boxes, scores, 0.5, max_outputs=4)
        levels = jax_dcn.fpn_levels(boxes, num_levels=4)
        return jnp.where(valid, scores[indices], 0).sum() + 0.0 * levels.sum()

    grad_boxes, grad_scores = jax.grad(loss, argnums=(0, 1))(boxes, scores)
    assert not grad_boxes.any()
    assert np.flatnonzero(grad_scores).tolist() == sorted(numpy_nms(boxes, scores, 0.5)[:4])


TORCHVISION = {}
DETECTRON2 = {"ratio_eps": 1e-8, "level_eps": 0}
MMDET = {"min_level": 0, "canonical_level": 0, "canonical_size": 56, "ratio_eps": 1e-6, "level_eps": 0}


def squares(sizes):
    return np.stack([0 * sizes, 0 * sizes, sizes, sizes], -1)


@pytest.mark.parametrize("options", [TORCHVISION, DETECTRON2, MMDET], ids=["torchvision", "Detectron2", "mmdet"])
def test_fpn_levels(options):
    """A level begins at 112, 224 and 448 pixels, for any shape of a box, and also where the size is rounded."""
    sizes = np.float32([1, 111.9, 112, 223.9, 224, 447.9, 448, 1e4])
    levels = [0, 0, 1, 1, 2, 2, 3, 3]
    assert jax_dcn.fpn_levels(squares(sizes), num_levels=4, **options).tolist() == levels
    wide = squares(sizes) * np.float32([1, 1, 4, 0.25])
    assert jax_dcn.fpn_levels(wide.reshape(2, 4, 4), num_levels=4, **options).tolist() == [levels[:4], levels[4:]]
    assert jax_dcn.fpn_levels(wide, num_levels=2, **options).tolist() == np.minimum(levels, 1).tolist()


def test_epsilons_of_fpn_levels():
    """A size that is too small for its level by half a millionth of it."""
    box = squares(np.float32([112 * (1 - 5e-7)]))
    assert jax_dcn.fpn_levels(box, num_levels=4).tolist() == [1]
    assert jax_dcn.fpn_levels(box, num_levels=4, level_eps=0).tolist() == [0]
    assert jax_dcn.fpn_levels(box, num_levels=4, level_eps=0, ratio_eps=1e-6).tolist() == [1]


def test_fpn_levels_of_special_boxes():
    boxes = np.float32([[3, 3, 3, 9], [9, 9, 3, 12], [0, 0, math.nan, 9], [0, 0, math.inf, 9], [0, 0, 300, 300]])
    levels = jax_dcn.fpn_levels(boxes, num_levels=4)
    assert levels.dtype == jnp.int32 and levels.tolist() == [0, 0, 0, 3, 2]
    assert jax_dcn.fpn_levels(boxes[4:].astype(int), num_levels=4).tolist() == [2]
    assert jax_dcn.fpn_levels(boxes[:0], num_levels=4).shape == (0,)


@pytest.mark.parametrize("with_classes", [False, True])
def test_a_symbolic_number_of_boxes(with_classes):
    boxes = jnp.array([[0.0, 0, 4, 4], [0, 0, 4, 3], [9, 9, 10, 10]])
    operands = (boxes, jnp.array([0.5, 0.9, 0.1]), jnp.array([1, 1, 0]))[: 3 if with_classes else 2]

    def run(boxes, scores, classes=None):
        return jax_dcn.nms(boxes, scores, 0.5, max_outputs=4, classes=classes)

    specs = export.symbolic_args_specs(operands, ("n, 4", "n", "n")[: len(operands)])
    indices, valid = export.export(jax.jit(run))(*specs).call(*operands)
    assert indices[valid].tolist() == [1, 2]
