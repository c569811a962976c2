"""Classes of checkpoints are matched with those of annotations by their names."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from examples.library.classes import described, places, with_rows
from examples.library.coco import read
from examples.rcnn import RCNN, Config
from examples.rcnn.coco import average_precision, results
from examples.rcnn.detector import Detections
from examples.rcnn.weights import PER_CLASS, adapt, names_in, settings_in, shapes
from tests.helpers import coco

pytestmark = pytest.mark.platforms("cpu")


@pytest.mark.parametrize(
    ("names", "classes", "expected"),
    [
        (["a", "b"], ["b", "a"], [1, 0]),
        (["TV", "potted_plant", "Sofa"], ["couch", "pottedplant", "tvmonitor"], [2, 1, 0]),
        (["sofa", "couch"], ["couch", "sofa"], [1, 0]),  # two classes of their own
        (["sofa", "couch"], ["Couch"], [None, 0]),
        (["sofa"], ["couch", "sofa"], [1]),
        (["N/A", "cat"], ["N/A", "cat", "N/A"], [None, 1]),  # which of them is not known
        (["cat"], [], [None]),
    ],
)
def test_places(names, classes, expected):
    assert places(names, classes) == expected


def test_a_partial_match_is_a_table():
    assert described(["cat", "dog"], ["cat", "dog"]) == ""
    assert described(["cat"], ["cat", "0"]) == "Classes of the checkpoint that are not kept: '0'\n"
    assert [line.split() for line in described(["dog", "lamp"], ["dog"]).splitlines()[1:]] == [
        ["dog", "dog"],
        ["lamp", "none,", "starts", "anew"],
    ]


def test_rows():
    old = np.arange(14.0).reshape(2, 7)  # three classes of two numbers, and one of the background
    found = with_rows(np.full((2, 5), -1.0), old, [2, None], per_class=2)
    assert_array_equal(found, [[4, 5, -1, -1, 6], [11, 12, -1, -1, 13]])
    assert not with_rows(np.zeros(3), np.ones(4), [None, None]).any()
    assert_array_equal(with_rows(np.zeros((3, 1)), np.array([[1], [2], [9]]), [1, 0], axis=0), [[2], [1], [9]])


@pytest.mark.slow
def test_heads_of_rcnn_follow_their_classes(monkeypatch):
    """Each class that has the same name keeps what was trained; all other layers are untouched."""
    model = RCNN(Config(("cat", "dog", "sofa"), 3))
    random = np.random.default_rng(0)
    variables = jax.tree.map(lambda leaf: random.random(leaf.shape, np.float32), shapes(model))
    monkeypatch.setattr(
        "examples.rcnn.weights.initialise",
        lambda model, key: jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape), shapes(model)),
    )
    adapted, new = adapt(model, variables, ["lamp", "couch", "cat"], jax.random.key(0))
    assert adapted.config == replace(model.config, names=("lamp", "couch", "cat"))
    changed = 0
    for (path, after), before in zip(
        jax.tree_util.tree_flatten_with_path(new)[0], jax.tree.leaves(variables), strict=True
    ):
        per_class = PER_CLASS.get(path[-2].key)
        if not per_class:
            assert after is before
            continue
        changed += 1
        after, before = (array[..., : 3 * per_class].reshape(-1, 3, per_class) for array in (after, before))
        assert_array_equal(after[:, 1:], before[:, [2, 0]])
        assert not after[:, 0].any()
    assert changed == 6
    fc_cls = [tree["params"]["roi_head"]["bbox_head"]["fc_cls"]["kernel"][:, -1] for tree in (new, variables)]
    assert_array_equal(*fc_cls)
    assert adapt(model, variables, ["cat", "dog", "sofa"], jax.random.key(0)) == (model, variables)


NAMES = ("cat", "dog")


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({"meta": {"dataset_meta": {"classes": NAMES}}}, NAMES),
        ({"meta": {"dataset_meta": {"CLASSES": [*NAMES]}}}, NAMES),
        ({"meta": {"CLASSES": NAMES}}, NAMES),
        ({"meta": {"CLASSES": "cat"}}, ("cat",)),
        ({"meta": {"CLASSES": None, "dataset_meta": {"classes": ()}}}, ()),
        ({"classes": np.array('["cat", "dog"]')}, NAMES),
        ({"classes": np.array("null")}, ()),
        ({"classes": 80, "settings": "of another tool"}, ()),
    ],
)
def test_names_in_checkpoints(content, names):
    assert names_in(content, len(names) or 2) == names
    assert settings_in(content) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"meta": {"CLASSES": np.array(NAMES)}}, "its names of classes must be a list of texts, got "),
        ({"meta": {"CLASSES": ["cat", None]}}, "its names of classes must be a list of texts, got "),
        ({"meta": {"dataset_meta": {"classes": ["cat"]}}}, "it must name its 2 classes, got 1 names"),
        ({"classes": np.array("2")}, "its names of classes must be a list of texts, got 2"),
        ({"classes": np.array(NAMES)}, "its classes must be JSON: Expecting value"),
        ({"meta": {"CLASSES": NAMES}, "classes": np.array('["dog", "cat"]')}, "it must name its classes once, got "),
    ],
)
def test_names_in_checkpoints_that_are_refused(content, message):
    with pytest.raises(ValueError, match=message):
        names_in(content, 2)


@pytest.mark.parametrize(
    "names", [("cat", "dog", "sofa"), ("Cat", "dog", "couch"), ("dog", "sofa", "cat"), ("things", "cat", "dog", "sofa")]
)
def test_detections_of_a_checkpoint(names, tmp_path, caplog):
    """Perfect detections by the classes of a checkpoint, one of which the annotations do not have."""
    numbers = {{"Cat": "cat", "couch": "sofa"}.get(name, name): number for number, name in enumerate(names, 1)}
    objects = [(1, numbers[name], [30 * place, 10, 20, 20]) for place, name in enumerate(("cat", "dog", "sofa"))]
    dataset = read(*coco.write(tmp_path, [(96, 96)], objects, names)).with_classes(["cat", "lamp", "dog", "sofa"])
    differ = f"Classes of {dataset.path} with another name in the model: 'Cat' is 'cat', 'couch' is 'sofa'"
    assert caplog.messages == [differ] * ("Cat" in names)
    boxes = np.array([[30 * place, 10, 30 * place + 20, 30] for place in (0, 0, 1, 2)], np.float32)
    found = Detections(boxes, np.array([0.7, 0.95, 0.8, 0.9]), np.arange(4), None)
    assert average_precision(dataset, results(dataset, 1, found, (96, 96)), masks=False)["box AP"] == pytest.approx(1)
    with pytest.raises(ValueError, match="must have objects of the model's classes, 'cat', 'lamp', but has some of"):
        dataset.with_classes(["cat", "lamp"])
