"""What several tests of the examples share."""

import pytest

from tests.helpers import mask_rcnn


@pytest.fixture(scope="session")
def digits_folder(tmp_path_factory):
    """Scenes of digits with annotations in the format of COCO: three to train on, two to validate with."""
    pytest.importorskip("sklearn")
    pytest.importorskip("pycocotools")
    from examples.rcnn import digits

    folder = tmp_path_factory.mktemp("digits")
    digits.main([str(folder), "--train", "3", "--validation", "2", "--size", "96"])
    return folder


@pytest.fixture(scope="session")
def state():
    """A random checkpoint of mmdet's Mask R-CNN."""
    return mask_rcnn.state(mask_rcnn.read()[0])
