"""What a command that trains a detector does after it has read its options: it trains, or only evaluates."""

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .checkpoints import StartError
from .coco import Dataset
from .command_line import ending_with_others
from .devices import check_same, chosen, on_own
from .files import digest
from .loop import Options, evaluations_since_best
from .photographs import ImageError
from .precision import NotFiniteError, described, described_by_class
from .training import Results, Task, outputs, train

FOLDERS = ("images", "validation images")  # which may have moved when a run goes on


@contextlib.contextmanager
def ending(program: str) -> Iterator[None]:
    """Ends a command with a message after an error of its options, files or data, and not after other errors."""
    try:
        yield
    except (StartError, ImageError, NotFiniteError, OSError) as error:
        raise SystemExit("\n".join([f"{program}: error: {error}", *getattr(error, "__notes__", [])])) from error


def check_start(options: argparse.Namespace, results: Results, name: str) -> None:
    """Raises StartError if what a run starts from, by the name of its option, is deleted when it starts."""
    start: Path | None = getattr(options, name)
    deleted = [path.resolve() for path in outputs(options.out, results).values()]
    if options.overwrite and start and start.resolve() in deleted:
        raise StartError(f"--{name} must be none of what --overwrite deletes, got {start}")


@ending_with_others()
def run(program: str, options: argparse.Namespace, task: Task, dataset: Dataset, settings: Mapping[str, Any]) -> None:
    """Runs a task with the options of a `TrainingParser`, or only evaluates the variables.

    dataset: that is trained on. settings: what else than the common options decides the result. Several processes run
    it together, of which the first one writes the results.
    """
    devices, validation = chosen(options.devices), task.validation
    with ending(program):
        if options.evaluate_only:
            found = on_own(devices, task.recipe.batch_size, validation.measure, task.variables).scores
            print("\n".join([described(found), *described_by_class(found)]))
            return
        check_start(options, task.results, "checkpoint")
        settings = {
            "objects": options.objects,
            "background": options.background,
            "mirrors": options.mirrors,
            "dtype": options.dtype,
            "SHA-256 of the checkpoint": options.checkpoint and digest(options.checkpoint),
            "SHA-256 of the annotations": dataset.digest,
            "SHA-256 of the validation annotations": validation and validation.dataset.digest,
            "best": options.best,
            "classes": dataset.names,
            **settings,
        }
        check_same(settings | vars(task.recipe) | {"patience": options.patience, "existing": options.existing})
        data_sets = zip(FOLDERS, (dataset, validation and validation.dataset), strict=True)
        settings |= {name: data and str(data.folder.resolve()) for name, data in data_sets}
        changeable = [*options.changeable, *FOLDERS]
        how = Options(options.existing, settings, changeable, options.patience, options.tensorboard, devices)
        found = train(task, options.out, how)
    if found.steps < task.recipe.steps:
        best_step = list(found.scores)[-1 - evaluations_since_best(found.scores, options.best)]
        print(f"{options.best} has not risen since step {best_step}. Continue with --resume and a larger --patience.")
    for line in described_by_class(found.scores[max(found.scores, key=int)]) if found.scores else ():
        print(line)
    model, waiting = outputs(options.out, task.results)["model"], found.log.waiting()
    print(f"The checkpoint is {model}. The loop waited for data {waiting:.0%} of the time.")
