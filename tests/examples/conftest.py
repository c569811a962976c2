"""What several tests of the examples share. Without the packages of the extra `examples` there are none."""

import importlib.util

import pytest

from tests.helpers import mask_rcnn

NEEDED = ("matplotlib", "optax", "orbax", "pycocotools", "safetensors", "sklearn")
collect_ignore_glob = [] if all(map(importlib.util.find_spec, NEEDED)) else ["*.py"]


@pytest.fixture(autouse=True)
def nothing_is_said_of_kept_programs(monkeypatch):
    """Commands that run in this process keep their programs where the tests do, and do not say so."""
    from examples.library import command_line

    monkeypatch.setattr(command_line, "_keep_programs", lambda: None)


@pytest.fixture
def refusal(capsys):
    """Runs a command that must end with an error of its command line, and returns what it says."""

    def run(main, *arguments):
        with pytest.raises(SystemExit):
            main([str(one) for one in arguments])
        return capsys.readouterr().err

    return run


@pytest.fixture(scope="session")
def digits_folder(tmp_path_factory):
    """Scenes of digits with annotations in the format of COCO: three to train on, two to validate with."""
    from examples.rcnn import digits

    folder = tmp_path_factory.mktemp("digits")
    digits.main([str(folder), "--train", "3", "--validation", "2", "--size", "96"])
    return folder


@pytest.fixture
def packaged():
    """Finds a file in an installed package, as `examples.library.files.packaged`, or skips the test."""
    from examples.library import files

    def find(requirement, *path):
        try:
            return files.packaged(requirement, *path)
        except FileNotFoundError:
            pytest.skip(f"{requirement} is not installed")

    return find


@pytest.fixture(scope="session")
def state():
    """A random checkpoint of mmdet's Mask R-CNN."""
    return mask_rcnn.state(mask_rcnn.read()[0])
