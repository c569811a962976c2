"""What a command that trains does after it has read its options: it trains, evaluates and writes the results."""

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils

from . import curves
from .checkpoints import StartError, locked
from .coco import Dataset
from .command_line import ending_with_others
from .devices import check_same, chosen, on_own
from .files import digest, to_json
from .gradients import described_rates
from .loop import Run, evaluations_since_best
from .measurements import write_table
from .mistakes import draw as draw_mistakes
from .photographs import ImageError
from .precision import OF_CLASS, Evaluation, NotFiniteError

# What --resume may change: folders, which may have moved, and if it is given, what a run whose losses explode may need.
FOLDERS = ("images", "validation images")
RATES = ("learning_rate", "offset_rate", "backbone_rate", "slow_rate", "clip_norm")


@ending_with_others()
def run(
    program: str,
    options: argparse.Namespace,
    dataset: Dataset,
    validation: Dataset | None,
    train: Callable[..., Run],
    variables: Any,
    *,
    kept: Callable[[Any], Any],
    measure: Callable[[Any], Evaluation],
    save: Callable[[Path, Any], None],
    suffix: str = "",
    draw: Callable[[Path, Any], None] | None = None,
    settings: dict[str, Any],
    scores: Sequence[str],
) -> None:
    """Runs a training with the options of `training_parser`, or only evaluates the variables.

    Several processes run it together. The first one writes the results, and the others wait for it.
    train: takes the folder of checkpoints, and options of `fit`. kept: from a state to the variables to keep.
    measure: evaluates variables on the validation data. save: writes variables to a path, which has the suffix.
    draw: writes a picture of what is found. settings: what else decides the result. scores: the names of those that are
    drawn, with the best one of the options.
    """
    out, loading = options.out, options.loading
    best, model = (out / f"{name}{suffix}" for name in ("best", "model"))
    pictures = plot, picture, mistakes = [out / f"{name}.png" for name in ("curves", "detections", "mistakes")]
    results, table = out / "results.json", out / "scores.csv"
    outputs = [best, model, results, table, *pictures]
    devices, is_first = chosen(options.devices), jax.process_index() == 0
    on_devices = partial(on_own, devices, loading.batch_size)

    def evaluate(state, steps, before):
        listed, found = on_devices(measure, kept(state))
        print(f"step {steps}: {described(found)}")
        if is_first:
            scores = before | {str(steps): found}
            if evaluations_since_best(scores, options.best) == 0:
                save(best, jax.device_get(kept(state)))
            write_table(table, [{"step": step, **scores[step]} for step in scores])
            draw_mistakes(mistakes, validation, listed)
        return found

    try:
        if options.evaluate_only:
            found = on_devices(measure, variables).scores
            print("\n".join([described(found), *described_by_class(found)]))
            return
        if options.overwrite and options.checkpoint and options.checkpoint.resolve() in [*map(Path.resolve, outputs)]:
            raise StartError(f"--checkpoint must be none of what --overwrite deletes, got {options.checkpoint}")
        settings = {
            "objects": loading.objects,
            "background": loading.background,
            "mirrors": loading.mirrors,
            "dtype": options.dtype,
            "SHA-256 of the checkpoint": options.checkpoint and digest(options.checkpoint),
            "SHA-256 of the annotations": dataset.digest,
            "SHA-256 of the validation annotations": validation and validation.digest,
            "best": options.best,
            **settings,
        }
        check_same(settings | vars(options.recipe) | {"patience": options.patience, "resume": options.resume})
        data_sets = zip(FOLDERS, (dataset, validation), strict=True)
        settings |= {name: data and str(data.folder.resolve()) for name, data in data_sets}
        with locked(out):
            print(described_rates(options.recipe.group_rates))
            found = train(
                out / "checkpoints",
                settings=settings,
                changeable=[*FOLDERS, *(name for name in RATES if vars(options).get(name) is not None)],
                evaluate=evaluate if validation else None,
                best=options.best,
                patience=options.patience,
                devices=devices,
                log=out / "log.jsonl",
                tensorboard=out / "tensorboard" if options.tensorboard else None,
                outputs=[*outputs, *([] if options.resume else [out / "tensorboard"])],
                resume=options.resume,
                overwrite=options.overwrite,
            )
            if is_first:
                save(model, jax.device_get(kept(found.state)))
                result = {"recipe": vars(options.recipe), "names": dataset.names, "waiting": found.log.waiting()}
                results.write_text(to_json(result | {"scores": found.scores}))
                curves.draw(plot, found, list(dict.fromkeys([*scores, options.best])))
                if draw:
                    try:
                        on_devices(partial(draw, picture), kept(found.state))
                    except ImageError as error:  # without validation data, of an image that training may have left out
                        print(f"{picture} was not drawn: {error}")
            multihost_utils.sync_global_devices("the results are written")
    except (StartError, ImageError, NotFiniteError, OSError) as error:
        raise SystemExit("\n".join([f"{program}: error: {error}", *getattr(error, "__notes__", [])])) from error
    if found.steps < options.recipe.steps:
        best_step = list(found.scores)[-1 - evaluations_since_best(found.scores, options.best)]
        print(f"{options.best} has not risen since step {best_step}. Continue with --resume and a larger --patience.")
    for line in described_by_class(found.scores[max(found.scores, key=int)]) if found.scores else ():
        print(line)
    print(f"The checkpoint is {model}. The loop waited for data {found.log.waiting():.0%} of the time.")


def described(scores: Mapping[str, float]) -> str:
    """Scores in percent, without those of one class.

    >>> described({"AP": 0.4321, "AP50": 1.0, "AP of cat": 0.4321})
    'AP 43.2, AP50 100.0'
    """
    return ", ".join(f"{name} {100 * score:.1f}" for name, score in scores.items() if OF_CLASS not in name)


def described_by_class(scores: Mapping[str, float]) -> list[str]:
    """A line for each kind of scores of one class, in percent.

    >>> described_by_class({"AP": 0.5, "AP of cat": 0.75, "AP of dog": 0.25})
    ['AP of classes: cat 75.0, dog 25.0']
    """
    found = defaultdict(list)
    for name, score in scores.items():
        kind, is_of_class, label = name.partition(OF_CLASS)
        if is_of_class:
            found[kind].append(f"{label} {100 * score:.1f}")
    return [f"{kind} of classes: {', '.join(listed)}" for kind, listed in found.items()]
