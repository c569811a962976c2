"""Matching, denoising queries and losses of detection transformers, beside transformers and the authors' codes.

test_training.py has the losses of models.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from examples.detr.config import RTDetrConfig
from examples.detr.criterion import DFineLosses, RTDetrLosses
from examples.detr.decoder import Detections, Outputs, Predictions
from examples.detr.denoising import count, draw, make_denoising
from examples.detr.matching import Targets, match
from examples.library.boxes import centre_to_corners, corners_to_centre, generalised_iou, iou
from jax_dcn import linear_sum_assignment
from tests.helpers import detr_training

pytestmark = pytest.mark.platforms("cpu")

close = partial(assert_allclose, rtol=0, atol=1e-10)


QUERIES, CLASSES = 20, 7


def predictions(queries, layers=2):
    """Random ones of two images, as D-FINE has them."""
    random = np.random.default_rng(queries)
    logits, corners = (random.normal(size=(layers + 1, 2, queries, *size)) for size in ((CLASSES,), (4, 33)))
    boxes = random.uniform(0.3, 0.6, (layers + 1, 2, queries, 4))
    first = Detections(logits[0], boxes[0])
    return jax.tree.map(jnp.asarray, Predictions(logits[1:], boxes[1:], first, corners[1:], boxes[0]))


def targets_of(case):
    return detr_training.targets(detr_training.read(case).arrays)


@partial(jax.jit, static_argnums=0, static_argnames="num_denoising")
def drawn(queries, targets, num_denoising):
    draws = draw(jax.random.key(0), queries, targets, CLASSES)
    return make_denoising(
        draws, targets, RTDetrConfig(num_labels=CLASSES, num_queries=QUERIES, num_denoising=num_denoising)
    )


def test_denoising_distributions_have_losses(x64):
    """Denoising queries that predict what the ordinary ones do, with their assignment, have the same losses."""
    criterion, targets, predicted = jax.jit(DFineLosses()), targets_of("d_fine_simple/train"), predictions(QUERIES)
    outputs = Outputs(predicted, predicted.first)
    found = criterion(outputs, targets)
    denoising = drawn(QUERIES, targets, num_denoising=2)
    both = criterion(outputs._replace(denoising=predicted), targets, denoising)
    assert {name: value for name, value in both.items() if "_dn" not in name} == found
    assert {name.partition("_dn_")[2] for name in both if "_dn_" in name} == {"0", "1", "pre"}
    assert {"loss_ddf_dn_0", "loss_fgl_dn_1", "loss_vfl_dn_pre"} < both.keys() and "loss_ddf_dn_1" not in both
    other = predicted._replace(corners=predicted.corners + jnp.arange(33.0))
    changed = criterion(outputs._replace(denoising=other), targets, denoising)
    assert changed["loss_fgl_dn_0"] != both["loss_fgl_dn_0"] and changed["loss_bbox_dn_0"] == both["loss_bbox_dn_0"]


def test_no_targets():
    """Without any target all losses are finite, and no denoising query has one."""
    targets = targets_of("rt_detr_v2/train")
    empty = Targets(targets.boxes, jnp.full_like(targets.labels, -1))
    number = count(24, empty)
    denoising, predicted = drawn(number, empty, num_denoising=24), predictions(QUERIES)
    outputs, criterion = Outputs(predicted, predicted.first, predictions(number)), RTDetrLosses()
    assert not np.any(denoising.present) and np.all(denoising.hidden[:, :48])
    loss = jax.value_and_grad(lambda outputs: sum(criterion(outputs, empty, denoising).values()))
    total, gradient = jax.jit(loss)(outputs)
    assert np.isfinite(total)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert not np.any(gradient.denoising.logits) and np.any(gradient.layers.logits)


def test_boxes(x64):
    arrays, _ = detr_training.read_function("boxes")
    boxes, targets = arrays["boxes"].astype(float), arrays["targets"].astype(float)
    close(centre_to_corners(boxes), arrays["corners"])
    close(corners_to_centre(centre_to_corners(boxes)), boxes)
    pairs = centre_to_corners(boxes)[:, None], centre_to_corners(targets)
    close(iou(*pairs), arrays["iou"])
    close(generalised_iou(*pairs), arrays["giou"])
    special, partner = (centre_to_corners(arrays[name].astype(float)) for name in ("special", "partner"))
    close(iou(special, partner), arrays["special_iou"])
    close(generalised_iou(special, partner), arrays["special_giou"])


def test_assignments(x64):
    """All at once: targets and queries that are missing cost infinitely much."""
    arrays, meta = detr_training.read_function("assignment")
    costs = [arrays[f"{case}/cost"].astype(float) for case in meta["cases"]]
    padded = np.full((len(costs), *np.max([cost.shape for cost in costs], 0)), np.inf)
    for array, cost in zip(padded, costs, strict=True):
        array[: len(cost), : cost.shape[1]] = cost
    for case, cost, row in zip(meta["cases"], costs, np.asarray(linear_sum_assignment(padded)), strict=True):
        found = row[: len(cost)]
        chosen = np.flatnonzero(found >= 0)
        assert len(chosen) == len(set(found[chosen])) == min(cost.shape)
        assert_allclose(cost[chosen, found[chosen]].sum(), arrays[f"{case}/total"], rtol=1e-6, atol=1e-9)
        if meta["cases"][case]["unique"]:
            rows, columns = arrays[f"{case}/match"]
            assert_array_equal(found[rows], columns)


def test_predictions_that_are_not_finite():
    """A target is matched with one of them only if there is no other, and then appears in the losses."""
    boxes = jnp.full((1, 1, 3, 4), 0.5).at[..., :2, :].set(jnp.array([[jnp.nan], [jnp.inf]]))
    targets = Targets(jnp.full((1, 2, 4), 0.4), jnp.array([[1, -1]]))
    assert_array_equal(match(jnp.zeros((1, 1, 3, CLASSES)), boxes, targets), [[[-1, -1, 0]]])
    none_known = match(jnp.full((1, 1, 3, CLASSES), jnp.nan), boxes, targets)
    assert sorted(none_known[0, 0].tolist()) == [-1, -1, 0]


@pytest.mark.parametrize("case", ["two_images", "empty_image", "one_group"])
def test_denoising_queries(case, x64):
    arrays, meta = detr_training.read_function("denoising")
    about = meta["cases"][case]
    of_case = {key.removeprefix(f"{case}/"): array for key, array in arrays.items() if key.startswith(f"{case}/")}
    found = detr_training.denoising(of_case, detr_training.targets(of_case, 1), about, about["num_classes"])
    number, queries = about["dn_num_split"]
    assert_array_equal(found.classes[:, :number], of_case["class"])
    close(found.boxes[:, :number], of_case["box_unact"])
    assert_array_equal(found.present, np.arange(len(found.present)) < number)
    assert found.groups == about["dn_num_group"]
    shown = np.r_[:number, len(found.present) : len(found.present) + queries]
    assert_array_equal(found.hidden[shown][:, shown], of_case["attention_mask"])
    assert np.all(found.hidden[:, number : len(found.present)])
    for image in (0, 1):
        rows, columns = of_case[f"match/{image}"]
        expected = np.full(len(found.present), -1)
        expected[rows] = columns
        assert_array_equal(found.targets[image], expected)
