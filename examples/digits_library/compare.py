"""Trains variants of a detector in the same way and scores them, for the command lines of the examples."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from . import distributed, evaluate, report, scenes
from .train import Loss, Recipe, train

PICTURED_SCENES = 8


class Method(NamedTuple):
    """How a kind of detector is trained and measured.

    loss: as `train` takes it. detect(model, params, images): its `Detections`. measure(model, params, batches): more
    numbers, by name.
    """

    loss: Loss
    detect: Callable[[nn.Module, dict, jax.Array], evaluate.Detections]
    measure: Callable[[nn.Module, dict, list[scenes.Scenes]], dict[str, float]] = lambda *_: {}


class Comparison(NamedTuple):
    """The result of each run, and, for the first run of each variant, its parameters and its detections in the
    `pictured` scenes."""

    results: list[dict[str, Any]]
    params: dict[str, dict]
    found: dict[str, evaluate.Detections]
    pictured: scenes.Scenes


def compare(models: dict[str, nn.Module], method: Method, options: argparse.Namespace) -> Comparison:
    """Train every model with every seed, score it on the validation scenes and print the scores.

    Several processes train together. Afterwards each of them computes the same scores, so that none waits for another.
    """
    devices = distributed.start(options)
    say = print if jax.process_index() == 0 else lambda *_: None
    say(f"jax {jax.__version__} on {len(devices)} x {devices[0].device_kind}")
    truth = list(evaluate.validation_batches(options.validation_images, options.batch_size))
    pictured = scenes.make_batch("validation", evaluate.VALIDATION_SEED, range(PICTURED_SCENES))
    rates = {"learning_rate": options.learning_rate, "offset_rate": options.offset_rate}
    recipe = Recipe(options.steps, options.batch_size, **rates, checkpoint_every=options.checkpoint_every)
    comparison = Comparison([], {}, {}, pictured)
    for seed in range(options.seeds):
        for variant, model in models.items():
            name = f"{variant}-{seed}"
            directory = options.out / "checkpoints" / name
            run = train(model, method.loss, recipe, seed, directory, resume=options.resume, devices=devices, title=name)
            params = jax.device_get(run.state.params)
            detections = [jax.device_get(method.detect(model, params, batch.images)) for batch in truth]
            scores = evaluate.average_precision(truth, detections)
            say(f"{name}: " + ", ".join(f"{score} {100 * scores[score]:.1f}" for score in ("AP", "AP50", "AP75")))
            comparison.results.append(
                {
                    "variant": variant,
                    "seed": seed,
                    **scores,
                    "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
                    "ms per step": float(np.median(run.milliseconds)),
                    **method.measure(model, params, truth),
                    "losses": run.losses,
                }
            )
            if variant not in comparison.found:
                comparison.params[variant] = params
                comparison.found[variant] = jax.device_get(method.detect(model, params, pictured.images))
    return comparison


def write_results(results: list[dict], text: str, options: argparse.Namespace) -> None:
    """Print the text, with a legend, and write it and the results to the output folder."""
    text = f"{text}\n{report.LEGEND}\n"
    print(f"\n{text}", end="")
    (options.out / "results.md").write_text(text)
    (options.out / "results.json").write_text(json.dumps({"options": vars(options), "runs": results}, default=str))


def parse(
    doc: str, variants: Sequence[str], defaults: dict[str, Any], arguments: Sequence[str] | None
) -> argparse.Namespace:
    """The options of a comparison; `doc` is the program's docstring: a summary, then examples."""
    summary, examples = doc.split("\n\n")
    parser = argparse.ArgumentParser(
        prog=examples.split(" #")[0].strip(),
        description=summary,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--variants", nargs="+", choices=variants, default=variants, help="what to train (%(default)s)")
    add("--steps", type=_positive, help="training steps of each run (%(default)s)")
    add("--seeds", type=_positive, default=1, help="runs of each variant (%(default)s)")
    add("--batch-size", type=_positive, default=Recipe.batch_size, help="scenes in a step (%(default)s)")
    add("--learning-rate", type=float, default=Recipe.learning_rate, help="peak learning rate (%(default)s)")
    offset_help = "learning rate of offset layers, as a fraction of that of all others (%(default)s)"
    add("--offset-rate", type=float, default=Recipe.offset_rate, help=offset_help)
    checkpoint_help = "steps from one checkpoint to the next (%(default)s)"
    add("--checkpoint-every", type=_positive, default=Recipe.checkpoint_every, help=checkpoint_help)
    add("--validation-images", type=_positive, default=320, help="scenes to evaluate on (%(default)s)")
    add("--out", type=Path, help="folder to write to (%(default)s)")
    resume_help = "go on from the checkpoints in OUT, made with the same options; otherwise they are overwritten"
    add("--resume", action="store_true", help=resume_help)
    distributed.add_arguments(parser)
    parser.set_defaults(**defaults)
    options = parser.parse_args(arguments)
    distributed.check(parser, options)
    return options


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be positive, got {value}")
    return value
