"""Train plain and deformable R-FCN on scenes of digits, score them, and draw detections and the bins of the pooling.

python -m examples.rfcn                    # plain and deformable
python -m examples.rfcn --seeds 3 --variants plain deformable-convolution deformable-pooling deformable
python -m examples.rfcn --resume           # go on after an interruption
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax

from examples.library.command_line import COUNT, Parser
from examples.library.files import replaced, to_json
from examples.library.loop import Options
from examples.library.options import existing
from examples.library.trainer import ending
from examples.library.training import train

from . import evaluate, scenes
from .losses import RECIPE, task_of
from .model import RFCN, detect
from .pictures import draw

# Whether the convolutions of the last stage, and the pooling, are deformable.
VARIANTS = {
    "plain": (False, False),
    "deformable-convolution": (True, False),
    "deformable-pooling": (False, True),
    "deformable": (True, True),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    parser = Parser("python -m examples.rfcn", __doc__)
    add = parser.add_argument
    variants_help = "which convolutions and poolings are deformable; by default none, then both"
    add("--variants", nargs="+", choices=VARIANTS, default=["plain", "deformable"], help=variants_help)
    add("--seeds", type=COUNT, default=1, help="trainings of each variant (%(default)s)")
    add("--steps", type=COUNT, default=RECIPE.steps, help="of a training (%(default)s)")
    add("--batch-size", type=COUNT, default=RECIPE.batch_size, help="scenes in a step (%(default)s)")
    add("--validation-images", type=COUNT, default=320, help="scenes to score (%(default)s)")
    add("--out", type=Path, default=Path("out/rfcn"), help="folder to write to (%(default)s)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--resume", action="store_true", help="go on from the checkpoints in OUT, if any")
    group.add_argument("--overwrite", action="store_true", help="delete the checkpoints of earlier trainings in OUT")
    options = parser.parse_args(arguments)
    recipe = replace(RECIPE, steps=options.steps, batch_size=options.batch_size, warmup=options.steps // 20)
    how = Options(existing(options), devices=jax.devices()[:1])
    truth = list(evaluate.validation_batches(options.validation_images, options.batch_size))
    found: dict[str, list[dict[str, float]]] = {}
    for variant in options.variants:
        model = RFCN(len(scenes.CLASSES), *VARIANTS[variant])
        for seed in range(options.seeds):
            name = f"{variant}-{seed}"
            print(f"Training {name}, after some seconds for compiling")
            with ending(parser.prog):
                finished = train(task_of(model, replace(recipe, seed=seed)), options.out / name, how)
            params = finished.state.best["params"]
            detections = [jax.device_get(detect(model, params, batch.images)) for batch in truth]
            scores = evaluate.average_precision(truth, detections)
            found.setdefault(variant, []).append(scores)
            print(f"{name}: {described([scores])}")
            with replaced(options.out / f"{name}.png") as file:
                draw(file, model, params)
    with replaced(options.out / "results.json") as file:
        file.write_text(to_json(found))
    if options.seeds > 1:
        print("\n".join(f"{variant}: {described(scores)}" for variant, scores in found.items()))
    print(f"The pictures in {options.out} show detections, and the bins of an object's class and of its sides.")


def described(scores: Sequence[dict[str, float]]) -> str:
    """Scores in percent; of several trainings, their mean and standard deviation.

    >>> described([{"AP": 0.5}]), described([{"AP": 0.5}, {"AP": 0.7}])
    ('AP 50.0', 'AP 60.0 ± 14.1')
    """
    columns = {name: [100 * one[name] for one in scores] for name in scores[0]}
    spreads = {name: f" ± {statistics.stdev(some):.1f}" if len(some) > 1 else "" for name, some in columns.items()}
    return ", ".join(f"{name} {statistics.mean(some):.1f}{spreads[name]}" for name, some in columns.items())


if __name__ == "__main__":
    main()
