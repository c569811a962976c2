"""What all commands that train do with a run, its scores and its errors, here of a training that takes no time."""

import argparse
import errno
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from examples.library import trainer
from examples.library.checkpoints import locked
from examples.library.files import replaced
from examples.library.options import NO_IMAGES, TrainingParser, choose_best, chosen_recipe
from examples.library.photographs import ImageError
from examples.library.precision import Evaluation, check_finite
from examples.library.recipe import Recipe
from examples.library.training import Results, Task, Validation
from tests.examples.test_loop import strict_json

pytestmark = pytest.mark.platforms("cpu")

RECIPE = Recipe(4, batch_size=1, rule="sgd", learning_rate=0.5, warmup=0, evaluate_every=1)
SCORES = {"AP": [float("nan"), 0.5, 0.4, 0.3], "AP50": [0.1, 0.2, 0.4, 0.3]}


@pytest.fixture(autouse=True)
def annotations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("{}")


def batches(steps, bad=None):
    for step in steps:
        if step == bad:
            raise ImageError("a.png must be an image")
        yield np.full(1, step, np.float32)


def loss(variables, batch, key):
    """Its statistics count the steps."""
    square = jnp.square(sum(variables["params"].values()) - batch).mean()
    return {"square": square}, {"count": variables["batch_stats"]["count"] + 1}


def count(variables):
    return int(variables["batch_stats"]["count"])


def measured(variables):
    return Evaluation([], {name: values[count(variables) - 1] for name, values in SCORES.items()})


def save(path, variables):
    with replaced(path) as file:
        file.write_text(str(count(variables)))


def command(out, *arguments, load=batches, measure=measured, draw=None, images="images", recipe=RECIPE):
    """A command that trains for four steps, each of which is evaluated; the weights of step n have the n-th scores."""
    parser = TrainingParser("train", "Train.", "the start", {"": recipe}, str(out))
    options = parser.parse_args(["a.json", "images", "--validation", "b.json", images, "--devices", "1", *arguments])
    choose_best(parser, options, list(SCORES))
    dataset, validation = (
        NO_IMAGES._replace(path=Path(path), folder=Path(folder))
        for path, folder in (("a.json", "images"), ("b.json", images))
    )
    variables = {"params": {"x": jnp.ones(()), "y": jnp.zeros(())}, "batch_stats": {"count": jnp.zeros((), int)}}
    evaluation, results = Validation(measure, options.best, validation, ["AP"]), Results(save, draw=draw)
    task = Task(chosen_recipe(options, recipe), variables, loss, load, evaluation, results)
    trainer.run("train", options, task, dataset, {})


@pytest.mark.parametrize(("best", "expected"), [("AP", "2"), ("AP50", "3")])
def test_the_best_by_any_score(best, expected, tmp_path, capsys):
    command(tmp_path, "--best", best)
    assert capsys.readouterr().out.startswith("Peak learning rates: default 0.5\n")
    assert (tmp_path / "best").read_text() == expected and (tmp_path / "model").read_text() == "4"
    result = strict_json((tmp_path / "results.json").read_text())
    assert [found["AP"] for found in result["scores"].values()] == [None, 0.5, 0.4, 0.3]
    assert (tmp_path / "scores.csv").read_text() == "step,AP,AP50\n1,nan,0.1\n2,0.5,0.2\n3,0.4,0.4\n4,0.3,0.3\n"


def test_patience_and_more_of_it(tmp_path, capsys):
    command(tmp_path, "--patience", "1")
    assert "AP has not risen since step 2. Continue with --resume and a larger --patience." in capsys.readouterr().out
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 3
    with pytest.raises(SystemExit, match=r"train: error: best must be AP to go on from .*, got AP50"):
        command(tmp_path, "--patience", "3", "--resume", "--best", "AP50")
    command(tmp_path, "--patience", "3", "--resume")
    assert "has not risen" not in capsys.readouterr().out and (tmp_path / "model").read_text() == "4"


def test_tensorboard(tmp_path, monkeypatch, refusal):
    """What is logged and scored arrives, and --overwrite deletes the folder, with or without the option."""
    command(tmp_path, "--tensorboard")
    values = [value for event in events(tmp_path / "tensorboard") for value in event.summary.value]
    assert [value.simple_value for value in values if value.tag == "AP"] == pytest.approx(SCORES["AP"], nan_ok=True)
    assert len([value for value in values if value.tag == "loss"]) == 4
    command(tmp_path, "--overwrite")
    assert not (tmp_path / "tensorboard").exists()

    def write(board, step, numbers):
        raise OSError("No space left on device")

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr("examples.library.measurements.Board.write", write)
        with pytest.raises(SystemExit, match="step 1 cannot be written to the log: No space left on device"):
            command(tmp_path / "full", "--tensorboard")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "--tensorboard needs tensorboardX" in refusal(lambda options: command(tmp_path, *options), "--tensorboard")


def events(folder):
    """The events in a folder of TensorBoard, in records of a length, its checksum, the event, and its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    for file in folder.iterdir():
        data = file.read_bytes()
        while data:
            end = 12 + int.from_bytes(data[:8], "little")
            yield Event.FromString(data[12:end])
            data = data[end + 4 :]


def test_errors_say_how_to_go_on(tmp_path):
    """Those of images, of detections that are not finite, and of files, after all else is written."""

    def measure(variables):
        if count(variables) in (0, 3):  # 0: of --evaluate-only
            check_finite("b.png", [1.0], [[math.nan] * 4])
        return Evaluation([], {"AP": 0.1, "AP50": 0.1})

    def draw(path, variables):
        raise OSError(f"{path.name} of {count(variables)} cannot be written")

    with pytest.raises(SystemExit, match=r"^train: error: a.png must be an image\nStep 1 is saved. Continue"):
        command(tmp_path, load=partial(batches, bad=1))
    not_finite = r"train: error: objects found in b.png must have finite scores and boxes, got score 1.0 and box .*"
    with pytest.raises(SystemExit, match=rf"^{not_finite}\nStep 3 is saved. Continue"):
        command(tmp_path, "--resume", measure=measure)
    with pytest.raises(SystemExit, match=rf"^{not_finite}$"):
        command(tmp_path, "--evaluate-only", "--checkpoint", "model", measure=measure)
    with pytest.raises(SystemExit, match=r"^train: error: detections.png of 4 cannot be written$"):
        command(tmp_path, "--resume", draw=draw)
    assert (tmp_path / "model").exists() and (tmp_path / "results.json").exists()


def test_a_run_with_rates_of_layers_goes_on(tmp_path):
    """As if it had not ended, and only with these rates."""
    recipe = replace(RECIPE, rule="adamw", factors=(("y", 0.25),))
    command(tmp_path / "whole", recipe=recipe)
    with pytest.raises(SystemExit, match=r"Step 2 is saved"):
        command(tmp_path / "parts", recipe=recipe, load=partial(batches, bad=2))
    with pytest.raises(SystemExit, match=r"factors must be .*'y', 0.25.* to go on from .*, got"):
        command(tmp_path / "parts", "--resume", recipe=replace(recipe, factors=(("y", 0.5),)))
    command(tmp_path / "parts", "--resume", recipe=recipe)
    command(tmp_path / "one rate", recipe=replace(recipe, factors=()))
    logs = ((tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("whole", "parts", "one rate"))
    whole, parts, one_rate = ([strict_json(step)["loss"] for step in log] for log in logs)
    assert len(whole) == 4 and whole == parts and not np.allclose(whole, one_rate, rtol=0.01)


def test_a_run_that_goes_on_with_another_rate(tmp_path):
    """Only if the command line says so, and not because an option was forgotten."""
    with pytest.raises(SystemExit, match="must be an image"):
        command(tmp_path, "--clip-norm", "2", load=partial(batches, bad=1))
    with pytest.raises(SystemExit, match=r"clip_norm must be 2.0 to go on from .*, got 1.0"):
        command(tmp_path, "--resume")
    command(tmp_path, "--resume", "--clip-norm", "3")


@pytest.mark.parametrize(
    ("name", "setting"),
    [("a.json", "the annotations"), ("b.json", "the validation annotations"), ("start/config.json", "the checkpoint")],
)
def test_a_run_goes_on_with_the_same_files(name, setting, tmp_path, capsys):
    """The folders of images may have moved."""
    (tmp_path / "start").mkdir()
    (tmp_path / "start/config.json").write_text("{}")
    command(tmp_path, "--checkpoint", "start")
    (tmp_path / name).write_text("[]")
    message = rf"SHA-256 of {setting} must be 44136fa355b3678a to go on from .*, got 4f53cda18c2baa0c"
    with pytest.raises(SystemExit, match=message):
        command(tmp_path, "--resume", "--checkpoint", "start")
    (tmp_path / name).write_text("{}")
    command(tmp_path, "--resume", "--checkpoint", "start", images="moved")
    said = f"validation images was {tmp_path}/images until step 4, and is {tmp_path}/moved from there on.\n"
    assert said in capsys.readouterr().out


def test_a_run_that_overwrites_another(tmp_path):
    """What it does not write itself, such as the best weights without validation data, is not left from the other."""
    command(tmp_path, draw=lambda path, _: path.touch())
    written = ["best", "checkpoints", "curves.png", "detections.png", "log.csv", "log.jsonl", "model", "results.json"]
    written += ["scores.csv"]
    given = [".lock", "a.json", "b.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(given + written)
    with pytest.raises(SystemExit, match="error: --checkpoint must be none of what --overwrite deletes, got best"):
        command(tmp_path, "--overwrite", "--checkpoint", "best")
    with pytest.raises(SystemExit, match="must be an image"):
        command(tmp_path, "--overwrite", load=partial(batches, bad=0))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*given, "checkpoints"])


@pytest.mark.parametrize("option", ["--resume", "--overwrite", "--no-mirror"])
def test_two_runs_do_not_write_to_the_same_folder(option, tmp_path):
    """Whatever the second one is asked for, before it changes anything."""
    out = tmp_path / "out"
    with locked(out), pytest.raises(SystemExit, match=rf"error: another run is writing to {out}: end it, or pass anot"):
        command(out, option)
    assert [path.name for path in out.iterdir()] == [".lock"]
    command(out, option)


def test_a_folder_that_cannot_be_locked(tmp_path, monkeypatch, capsys):
    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    command(tmp_path)
    assert f"{tmp_path} cannot be locked (Function not implemented). No other run must" in capsys.readouterr().out


def test_a_file_is_replaced_only_by_a_complete_one(tmp_path):
    path = tmp_path / "folder" / "a.txt"
    with replaced(path) as file:
        file.write_text("old")
    with pytest.raises(ZeroDivisionError), replaced(path) as file:
        file.write_text("half of")
        1 / 0  # noqa: B018
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]


def test_the_recipe_of_a_command():
    """What is given, with at most a fifth of the steps as warm-up unless that is given, too."""
    given = argparse.Namespace(steps=50, decays=[0.5, 0.75])
    expected = Recipe(50, warmup=10, decays=(0.5, 0.75))
    assert chosen_recipe(given, Recipe(warmup=500)) == expected
    given.warmup = 40
    assert chosen_recipe(given, Recipe(warmup=500)) == replace(expected, warmup=40)
    assert chosen_recipe(argparse.Namespace(), Recipe(9, warmup=1)) == Recipe(9, warmup=1)
