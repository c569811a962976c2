"""Trains variants of a detector in the same way and scores them, for the command lines of the examples."""

import argparse
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from examples.library.checkpoints import locked
from examples.library.command_line import Parser
from examples.library.files import to_json
from examples.library.gradients import described_rates

from . import evaluate, report, scenes
from .pictures import draw_detections
from .train import Loss, Recipe, train

PICTURED_SCENES = 8
# If a process sends no heartbeat for this time, the others end. By default jax waits for 100 s.
HEARTBEAT_TIMEOUT_SECONDS = 20


class Example(NamedTuple):
    """A program that trains variants of a detector in the same way, and compares them.

    doc: its docstring, a summary and then commands. variants: all that it knows. defaults: of its options.
    make(variant): a model. loss: as `train` takes it. detect(model, params, images): its `Detections`.
    table(results): the text of the results. draw(folder, model, params, scenes): pictures of the variant "deformable".
    measure(model, params, batches): more numbers, by name.
    """

    doc: str
    variants: Sequence[str]
    defaults: dict[str, Any]
    make: Callable[[str], nn.Module]
    loss: Loss
    detect: Callable[[nn.Module, dict, jax.Array], evaluate.Detections]
    table: Callable[[list[dict]], str]
    draw: Callable[[Path, nn.Module, dict, scenes.Scenes], None]
    measure: Callable[[nn.Module, dict, list[scenes.Scenes]], dict[str, float]] = lambda *_: {}


def run(example: Example, arguments: Sequence[str] | None) -> None:
    """Train every variant with every seed, score it on the validation scenes, and write tables and pictures.

    Several processes train together. Afterwards each of them computes the same scores, so that none waits for another.
    """
    options = parse(example.doc, example.variants, example.defaults, arguments)
    devices = connected_devices(options.distributed)
    with locked(options.out):
        _run(example, options, devices)


def _run(example, options, devices):
    say = print if jax.process_index() == 0 else lambda *_: None
    say(f"jax {jax.__version__} on {len(devices)} x {devices[0].device_kind}")
    truth = list(evaluate.validation_batches(options.validation_images, options.batch_size))
    pictured = scenes.make_batch("validation", evaluate.VALIDATION_SEED, range(PICTURED_SCENES))
    rates = {"learning_rate": options.learning_rate, "offset_rate": options.offset_rate}
    recipe = Recipe(options.steps, options.batch_size, **rates, checkpoint_every=options.checkpoint_every)
    say(described_rates(recipe.group_rates))
    models = {variant: example.make(variant) for variant in options.variants}
    results, first_params = [], {}
    for seed, (variant, model) in itertools.product(range(options.seeds), models.items()):
        name = f"{variant}-{seed}"
        directory = options.out / "checkpoints" / name
        training = {"resume": options.resume, "devices": devices, "title": name}
        finished = train(model, example.loss, recipe, seed, directory, **training)
        params = jax.device_get(finished.state.params)
        first_params.setdefault(variant, params)
        detections = [jax.device_get(example.detect(model, params, batch.images)) for batch in truth]
        scores = evaluate.average_precision(truth, detections)
        say(f"{name}: " + ", ".join(f"{score} {100 * scores[score]:.1f}" for score in ("AP", "AP50", "AP75")))
        results.append(
            {
                "variant": variant,
                "seed": seed,
                **scores,
                "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
                "ms per step": float(np.median(finished.milliseconds)),
                **example.measure(model, params, truth),
                "losses": finished.losses,
            }
        )
    if jax.process_index() > 0:
        return
    text = f"{example.table(results)}\n{report.LEGEND}\n"
    print(f"\n{text}", end="")
    (options.out / "results.md").write_text(text)
    (options.out / "results.json").write_text(to_json({"options": vars(options), "runs": results}, str))
    found = {
        name: jax.device_get(example.detect(models[name], params, pictured.images))
        for name, params in first_params.items()
    }
    draw_detections(options.out / "detections.png", pictured, found)
    if "deformable" in models:
        example.draw(options.out, models["deformable"], first_params["deformable"], pictured)
    print(f"Tables and pictures are in {options.out}.")


def connected_devices(distributed: Sequence[str] | None) -> list[jax.Device]:
    """The devices to train on: one, or with `--distributed` those of all processes, once they are connected."""
    if distributed is None:
        return jax.devices()[:1]
    address, processes, number = distributed or (None, None, None)
    jax.distributed.initialize(
        address,
        processes and int(processes),
        number and int(number),
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
    )
    return jax.devices()


def parse(
    doc: str, variants: Sequence[str], defaults: dict[str, Any], arguments: Sequence[str] | None
) -> argparse.Namespace:
    """The options of a comparison; `doc` is the program's docstring: a summary, then examples."""
    parser = Parser(doc.split("\n\n")[1].split(" #")[0].strip(), doc)
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
    distributed_help = (
        "share each batch among the devices of several processes: HOST:PORT where the first one listens, how many "
        "there are, and which one this is, from 0 on; none of them where jax knows the cluster"
    )
    add("--distributed", nargs="*", metavar="PLACE", help=distributed_help)
    parser.set_defaults(**defaults)
    options = parser.parse_args(arguments)
    if options.distributed and len(options.distributed) != 3:
        parser.error("--distributed takes HOST:PORT, the number of processes and the number of this one, or nothing")
    return options


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be positive, got {value}")
    return value
