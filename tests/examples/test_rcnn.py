"""Faster R-CNN and Mask R-CNN in Flax, beside mmdet with the same checkpoint."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from examples.library.boxes import Boxes
from examples.library.coco import read
from examples.rcnn import RCNN, coco, fill
from examples.rcnn.assign import NEGATIVE, UNUSED, assign, sample, sample_regions
from examples.rcnn.config import ANCHORS, Config, ObjectLimits, Proposals
from examples.rcnn.detector import Detections, in_image
from examples.rcnn.images import resize
from examples.rcnn.losses import Batch, anchor_losses, region_losses
from examples.rcnn.rpn import STRIDES, propose
from examples.rcnn.weights import check_names, config_of
from examples.resnet import MEAN
from examples.rfcn import scenes
from jax_dcn import interop
from tests.helpers import mask_rcnn

pytestmark = pytest.mark.platforms("cpu")

SHOWN = 8
PIXELS = 1e-3  # the rounding errors of boxes are relative to anchors of up to 724 pixels


@pytest.fixture(scope="module")
def golden():
    return mask_rcnn.read()


@pytest.fixture(scope="module")
def model(state):
    return RCNN(config_of(state))


@pytest.fixture(scope="module")
def variables(model, state):
    return fill(model, state)


@pytest.fixture(scope="module")
def first_stage(model, variables):
    """(features, predictions of anchors, proposals, their scores)."""

    def run(model, images):
        features = model.features(images)
        predictions = model.rpn_head(features)
        proposals = propose(predictions, mask_rcnn.HEIGHT, mask_rcnn.WIDTH, model.config.proposals)
        return features, predictions, *proposals

    return jax.jit(functools.partial(model.apply, method=run))(variables, mask_rcnn.images())


@pytest.fixture(scope="module")
def proposals(golden):
    """mmdet's proposals."""
    found = [golden[1][f"proposals{image}"] for image in range(2)]
    count = max(map(len, found))
    boxes = np.stack([np.pad(boxes, [(0, count - len(boxes)), (0, 0)]) for boxes in found])
    return Boxes(boxes, np.arange(count) < np.array([[len(boxes)] for boxes in found]))


@pytest.mark.slow
def test_proposals(golden, first_stage):
    """mmdet sorts by probabilities, many of which round to the same number, so the order may differ."""
    _, _, regions, scores = first_stage
    for image, (boxes, valid, score) in enumerate(zip(*regions, scores, strict=True)):
        expected = golden[1][f"proposals{image}"]
        assert valid.sum() == len(expected) and not valid[len(expected) :].any()
        distances = np.abs(boxes[valid][:, None] - expected).max(-1)
        assert distances.min(0).max() < PIXELS and distances.min(1).max() < PIXELS
        assert_allclose(score[valid], golden[1][f"objectness{image}"], rtol=0, atol=1e-4)
        assert_array_equal(score[~valid], 0)


@pytest.mark.slow
def test_objects(golden, model, variables, first_stage, proposals):
    """The detections in mmdet's proposals."""
    find = jax.jit(functools.partial(model.apply, method="find"), static_argnums=(3, 4))
    found = find(variables, first_stage[0], proposals, mask_rcnn.HEIGHT, mask_rcnn.WIDTH)
    ratio = np.divide((mask_rcnn.WIDTH, mask_rcnn.HEIGHT) * 2, mask_rcnn.ORIGINAL[::-1] * 2)
    first = jax.tree.map(lambda part: part[:, :SHOWN], found._replace(boxes=found.boxes / ratio))
    masks = jax.jit(in_image, static_argnums=(1, 2))(first, *mask_rcnn.ORIGINAL).masks
    for image in range(2):
        expected = {name: golden[1][f"{name}{image}"] for name in ("boxes", "scores", "labels", "mask_logits", "masks")}
        assert_allclose(found.boxes[image] / ratio, expected["boxes"], rtol=0, atol=PIXELS)
        assert_allclose(found.scores[image], expected["scores"], rtol=0, atol=1e-4)
        assert_array_equal(found.labels[image], expected["labels"])
        assert_allclose(found.masks[image, :3], expected["mask_logits"], rtol=0, atol=1e-4)
        unpacked = np.unpackbits(expected["masks"], -1, count=mask_rcnn.ORIGINAL[1])
        assert (unpacked != masks[image]).mean() < 1e-4


class WithoutBackbone(RCNN):
    def features(self, images):
        return [jnp.tile(images[:, ::stride, ::stride, :1], 8) for stride in STRIDES]


@pytest.mark.slow
def test_numbers_that_are_not_finite():
    """The scores of their images are NaN, and those of other images are not."""
    sizes = Proposals(20, 10), ObjectLimits(0.0, count=5)
    model = WithoutBackbone(Config(classes=2, channels=8, hidden=8, proposals=sizes[0], objects=sizes[1]))
    images = np.random.default_rng(0).random((2, 64, 64, 3), np.float32)
    variables = jax.jit(model.init)(jax.random.key(0), images)
    apply = jax.jit(model.apply)
    assert (apply(variables, images).scores > 0).any(1).all()
    images[1] = np.inf
    found = apply(variables, images)
    assert_array_equal(np.isnan(found.scores), [[False] * 5, [True] * 5])
    for head in ("bbox_head", "mask_head"):
        broken = jax.tree.map(jnp.copy, variables)
        heads = broken["params"]["roi_head"]
        heads[head] = jax.tree.map(lambda leaf: leaf * jnp.nan, heads[head])
        assert np.isnan(apply(broken, images).scores[0]).all()


def test_every_name_is_used_and_none_is_missing(model, state):
    with pytest.raises(ValueError, match=r"missing 'neck.lateral_convs.0.conv.weight'"):
        fill(model, {name: array for name, array in state.items() if name != "neck.lateral_convs.0.conv.weight"})
    with pytest.raises(ValueError, match=r"unexpected 'roi_head.bbox_head.extra.weight'"):
        fill(model, state | {"roi_head.bbox_head.extra.weight": np.ones(3)})
    with pytest.raises(ValueError, match="must have a ResNet-50, -101 or -152"):
        config_of({name: array for name, array in state.items() if "layer3.5" not in name})
    with pytest.raises(ValueError, match=r"lacks 'roi_head.bbox_head.fc_cls.weight'"):
        check_names({name: array for name, array in state.items() if name.startswith("backbone")})


@pytest.mark.parametrize(("channels", "modulated", "groups"), [(54, True, 2), (72, False, 4), (108, True, 4)])
def test_the_shape_of_an_offset_convolution_decides_what_it_predicts(state, channels, modulated, groups):
    """54 = 18 · 3, but 3 groups do not divide the channels of a ResNet."""
    name = "backbone.layer2.0.conv2.conv_offset.weight"
    config = config_of(state | {name: np.zeros((channels, *state[name].shape[1:]))})
    assert (config.modulated, config.offset_groups) == (modulated, groups)
    with pytest.raises(ValueError, match="18 or 27 channels per group, got 50"):
        config_of(state | {name: np.zeros((50, 128, 3, 3))})


def every(settings, count, positive_fraction):
    """Settings with which all boxes that have a target are drawn, so that nothing is left to chance."""
    return dataclasses.replace(settings, count=count, positive_fraction=positive_fraction)


@pytest.mark.parametrize(
    ("name", "settings"), {"anchors": ANCHORS, "mask": Config().regions, "faster": Config(masks=False).regions}.items()
)
def test_assignment_where_objects_overlap(golden, name, settings):
    objects, boxes = map(jnp.array, mask_rcnn.crowd())
    truth = Boxes(objects, jnp.ones(len(objects), bool))
    found = jax.jit(assign, static_argnums=3)(boxes, jnp.ones(len(boxes), bool), truth, settings)
    assert_array_equal(found, golden[1][f"crowd_{name}"])


def training_losses(model, features, predictions, proposals, batch):
    """The losses of given proposals, with all anchors and regions that have a target."""
    key = jax.random.key(0)
    settings = every(model.config.regions, 600, 0.1)
    samples = sample_regions(key, proposals, batch.truth, settings)
    found = anchor_losses(predictions, batch.truth, key, every(ANCHORS, 10_000, 0.5))
    return found | region_losses(model, features, samples, batch, settings)


def expected_training(golden, kind, prefix):
    """mmdet's losses, or norms of gradients, of Mask R-CNN or Faster R-CNN, by name."""
    start = {"mask": prefix, "faster": f"faster_{prefix}"}[kind]
    return {
        name.removeprefix("faster_").removeprefix("gradient:"): float(array)
        for name, array in golden[1].items()
        if name.startswith(start)
    }


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["mask", "faster"])
def test_losses_and_gradients(golden, state, proposals, kind):
    """A checkpoint without the names of a mask head is a Faster R-CNN."""
    state = {name: array for name, array in state.items() if kind == "mask" or "mask_head" not in name}
    model = RCNN(config_of(state))
    assert model.config == Config(masks=kind == "mask")
    variables = fill(model, state)
    batch = Batch(mask_rcnn.images(), *mask_rcnn.truth())

    def run(model, proposals, batch):
        features = model.features(batch.images)
        return training_losses(model, features, model.rpn_head(features), proposals, batch)

    def loss(params, batch):
        found = model.apply({**variables, "params": params}, proposals, batch, method=run)
        return sum(found.values()), found

    compute = jax.jit(jax.grad(loss, has_aux=True))
    gradients, found = compute(variables["params"], batch)
    assert jax.tree.map(float, found) == pytest.approx(expected_training(golden, kind, "loss"), rel=1e-4)
    if kind == "mask":
        _, without_masks = compute(variables["params"], batch._replace(masks=np.zeros_like(batch.masks)))
        assert without_masks == found | {"loss_mask": 0}
    # float32 is too coarse for the norm of millions of numbers.
    gradients = interop.to_torch(gradients)
    expected = expected_training(golden, kind, "gradient:")
    norms = {name: float(np.linalg.norm(gradients[name].astype(float).ravel())) for name in expected}
    assert norms == pytest.approx(expected, rel=1e-4)


def test_resizing(golden):
    image = mask_rcnn.images(30, 40, 1)
    for expected in (golden[1]["resized64"], golden[1]["resized25"]):
        np.testing.assert_array_equal(resize(image, *expected.shape[:2])[0], expected)


def test_samples_are_drawn_at_random():
    objects = jnp.array([0, UNUSED, NEGATIVE, 1, NEGATIVE, UNUSED])
    settings = every(ANCHORS, 3, 0.5)
    drawn = [tuple(sample(jax.random.key(seed), objects, settings).tolist()) for seed in range(20)]
    for one in drawn:
        assert sum(index >= 0 for index in one) == 1 and one.count(NEGATIVE) == 2
    assert len(set(drawn)) == 2


def test_examples_of_a_folder(digits_folder):
    """Resizing is by 2/3 in a canvas that is wider than needed. The third scene has no objects."""
    dataset = read(digits_folder / "train.json", digits_folder / "train", masks=True)
    assert dataset.names == list("0123456789")
    loading = coco.Loading((64, 96), batch_size=2, objects=scenes.MAX_OBJECTS, mirrors=False)
    (batch,) = coco.training_batches(dataset, loading, range(1))
    expected = [scenes.make_scene("train", 0, index, 96) for index in range(2)]
    scenes_labels = [scene.labels.tolist() for scene in expected]
    order = [scenes_labels.index(labels.tolist()) for labels in batch.labels]
    assert sorted(order) == [0, 1]
    for row, index in enumerate(order):
        example = Batch(*(part[row] for part in batch))
        assert_allclose(example.boxes, expected[index].boxes * 2 / 3, rtol=1e-5)
        assert_array_equal(example.images[:, 64:], np.broadcast_to(np.round(MEAN), (64, 32, 3)))
        for box, mask in zip(example.boxes[example.labels >= 0], example.masks, strict=False):
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            assert_allclose([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1], box, atol=1.5)
        twice = coco.mirrored(coco.mirrored(example))
        assert_allclose(twice.boxes, example.boxes, atol=1e-4)
        assert_array_equal(twice.masks, example.masks)
    for smaller in coco.training_batches(dataset, dataclasses.replace(loading, min_scale=0.25), range(4)):
        for image, boxes in zip(smaller.images, smaller.boxes, strict=True):
            side = (image != np.round(MEAN)).any(-1).any(1).sum()  # of the square scene in the canvas
            assert 16 <= side <= 64 and 0 < boxes.max() <= side
    dataset.objects(1)[0]["segmentation"] = coco.encoded(np.eye(96))  # thinner than a pixel of the smaller image
    assert coco.load_example(dataset, 1, coco.Loading((24, 24), batch_size=1), (24, 24)).masks[0].sum() == 24


def test_average_precision_of_the_truth(digits_folder):
    loading = coco.Loading((64, 96), batch_size=1, objects=10)
    dataset = read(digits_folder / "validation.json", digits_folder / "validation", masks=True)
    listed = []
    for image in dataset.annotations.getImgIds():
        example = coco.load_example(dataset, image, loading, loading.size)
        found = Detections(example.boxes, (example.labels >= 0) * 0.9, example.labels, example.masks)
        listed += coco.results(dataset, image, found, loading.size)
    scores = coco.average_precision(dataset, listed, masks=True)
    assert scores["box AP"] == pytest.approx(1) and scores["mask AP50"] == pytest.approx(1)
    nothing = coco.average_precision(dataset, [], masks=False)
    assert {nothing[name] for name in ("box AP", "box AP50", "box AP75")} == {0.0}
    assert {name.removeprefix("box AP of ") for name in [*nothing][3:]} == {*dataset.names}
    other_classes = dataset._replace(categories=[None] * 10)
    message = "objects found in 000001.png must have finite scores and boxes, got score "
    for change in ({"scores": np.full_like(found.scores, np.nan)}, {"boxes": found.boxes + np.inf}):
        with pytest.raises(ValueError, match=message):
            coco.results(other_classes, image, found._replace(**change), loading.size)
