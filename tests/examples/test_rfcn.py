"""R-FCN: its regions, its losses, one compiled training step, and its sampling locations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose, assert_array_equal

from benchmarks.lowering.hlo import collectives
from examples.digits_library import scenes
from examples.digits_library.train import Recipe, train, train_step
from examples.library.boxes import Boxes, encode, iou
from examples.rfcn.losses import loss, match_anchors, proposal_loss, region_loss
from examples.rfcn.model import DELTA_SCALE, RFCN, Predictions, anchors, as_rois, detect, refine
from tests.helpers.sharding import make_mesh

IMAGE_SIZE = 64
TINY = {"widths": (8, 8, 16, 16), "blocks": (1, 1, 1), "width": 16}
MODEL = RFCN(10, deformable_convolution=True, deformable_pooling=True, **TINY)
RECIPE = Recipe(steps=30, batch_size=4, learning_rate=1e-2)


def test_every_object_has_an_anchor_and_padding_has_none():
    boxes = np.array([[3, 3, 9, 8], [8, 8, 60, 60], [0, 0, 0, 0]], np.float32)
    bases = anchors(IMAGE_SIZE, IMAGE_SIZE)
    objects, is_object, is_background = map(np.asarray, jax.jit(match_anchors)(bases, boxes, np.array([3, 4, -1])))
    assert set(objects[is_object]) == {0, 1}
    assert not (is_object & is_background).any()
    assert (np.asarray(iou(bases, boxes[0]))[is_object & (objects == 0)] > 0.1).all()


def test_regions_end_at_their_last_pixel_and_padding_has_no_image():
    regions = Boxes(jnp.array([[[0.0, 8, 16, 32], [1, 1, 2, 2]]] * 2), jnp.array([[True, False], [True, True]]))
    expected = [[[0, 0, 8, 15, 31], [-1, 1, 1, 1, 1]], [[0, 0, 8, 15, 31], [0, 1, 1, 1, 1]]]
    assert_array_equal(as_rois(regions), expected)


@pytest.fixture
def batch():
    return scenes.make_batch("train", 0, range(2), IMAGE_SIZE)


def test_right_regions_have_a_small_loss_and_padding_none(batch):
    """Regions close to the objects, with the right outputs of the second stage for them and with others."""
    valid = batch.labels >= 0
    near = batch.boxes + np.array([1, -1, 2, 1], np.float32) * valid[..., None]
    logits = np.full((*valid.shape, 11), -20, np.float32)
    np.put_along_axis(logits, np.where(valid, batch.labels, 10)[..., None], 20, -1)
    deltas = np.asarray(encode(batch.boxes, near)) / np.array(DELTA_SCALE, np.float32)
    right, region_loss_of = Predictions(None, None, Boxes(near, valid), logits, deltas), jax.jit(region_loss)
    assert region_loss_of(right, batch) < 1e-6
    assert region_loss_of(right._replace(logits=np.roll(right.logits, 1, -1)), batch) > 1
    assert region_loss_of(right._replace(deltas=0.5 * right.deltas), batch) > 0.02
    padding = Boxes(near, np.zeros_like(valid))
    assert region_loss_of(right._replace(logits=-right.logits, regions=padding), batch) == 0
    assert_allclose(refine(near, deltas)[valid], batch.boxes[valid], atol=1e-3)


def test_right_anchors_have_a_small_loss(batch):
    bases = anchors(IMAGE_SIZE, IMAGE_SIZE)
    objects, is_object, _ = jax.jit(jax.vmap(match_anchors, (None, 0, 0)))(bases, batch.boxes, batch.labels)
    boxes = np.take_along_axis(batch.boxes, np.asarray(objects)[..., None], 1)
    logits = np.where(is_object, np.float32(20), np.float32(-20))
    right = Predictions(logits, np.asarray(encode(boxes, bases)), None, None, None)
    proposal_loss_of = jax.jit(proposal_loss)
    assert proposal_loss_of(right, batch) < 1e-6
    assert proposal_loss_of(right._replace(anchor_logits=-right.anchor_logits), batch) > 1
    assert proposal_loss_of(right._replace(anchor_deltas=right.anchor_deltas + 1), batch) > 1


@pytest.mark.platforms("cpu")
def test_a_step_over_devices_gathers_no_maps(batch):
    """It does gather scores, because XLA does not split `top_k`. Guards against: regions that refer to any image."""
    mesh = make_mesh(shape=(2,))
    params = jax.jit(MODEL.init)(jax.random.key(0), batch.images)["params"]
    params, batch = jax.device_put((params, batch), (NamedSharding(mesh, P()), NamedSharding(mesh, P("a"))))
    step = jax.jit(jax.value_and_grad(loss, argnums=1), static_argnums=0)
    exchanged = collectives(step.lower(MODEL, params, batch).compile())
    gathered = [c for c in exchanged if c.kind != "all-reduce"]
    assert {(c.kind, len(c.shape)) for c in gathered} == {("all-gather", 2)}
    numbers = sum(leaf.size for leaf in jax.tree.leaves(params)) + 4  # the loss has two sums and two counts
    assert sum(c.bytes for c in exchanged) - sum(c.bytes for c in gathered) == 4 * numbers


def test_training_compiles_one_step_and_moves_offsets(tmp_path):
    train_step.clear_cache()
    trained = train(MODEL, loss, RECIPE, 0, tmp_path, image_size=IMAGE_SIZE)
    assert len(trained.losses) == RECIPE.steps and train_step._cache_size() == 1
    assert np.mean(trained.losses[-10:]) < 0.9 * np.mean(trained.losses[:10])
    params = trained.state.params
    layers = (params["backbone"]["stage3_block0"]["conv1"]["conv"], params["class_pool"], params["box_pool"])
    assert all(np.abs(layer["conv_offset"]["kernel"]).max() > 0 for layer in layers)

    batch = scenes.make_batch("validation", 0, range(2), IMAGE_SIZE)
    boxes, scores, classes = detect(MODEL, params, batch.images)
    assert boxes.min() >= 0 and boxes.max() <= IMAGE_SIZE
    assert scores.min() >= 0 and scores.max() <= 1 and scores.any() and classes.max() < 10
