"""Train plain and deformable detectors, compare them in a table and draw what they see.

python -m examples.detector                            # both variants, one seed
python -m examples.detector --seeds 3 --steps 2400     # a longer comparison
python -m examples.detector --resume                   # the same run again, from where it was interrupted
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np

from . import evaluate, pictures, report, sampling, scenes
from .model import Detector
from .train import Recipe, train

VARIANTS = ("plain", "deformable")
PICTURED_SCENES = 8


def main(arguments: list[str] | None = None) -> None:
    """Run the command line, by default that of the process."""
    options = _parse(arguments)
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}")
    truth = list(evaluate.validation_batches(options.validation_images, options.batch_size))
    pictured = scenes.make_batch("validation", evaluate.VALIDATION_SEED, range(PICTURED_SCENES))
    recipe = Recipe(options.steps, options.batch_size, options.learning_rate, options.offset_rate)
    results, found, deformable = [], {}, None
    for seed in range(options.seeds):
        for variant in options.variants:
            model = Detector(len(scenes.CLASSES), deformable=variant == "deformable")
            name = f"{variant}-{seed}"
            run = train(model, recipe, seed, options.out / "checkpoints" / name, resume=options.resume, title=name)
            detections = [jax.device_get(evaluate.detect(model, run.state.params, batch.images)) for batch in truth]
            scores = evaluate.average_precision(truth, detections)
            print(f"{name}: AP {100 * scores['AP']:.1f}, AP50 {100 * scores['AP50']:.1f}")
            results.append(
                {
                    "variant": variant,
                    "seed": seed,
                    **scores,
                    "parameters": sum(leaf.size for leaf in jax.tree.leaves(run.state.params)),
                    "ms per step": float(np.median(run.milliseconds)),
                    "dilations": sampling.mean_dilations(model, run.state.params, truth),
                    "losses": run.losses,
                }
            )
            if variant not in found:
                found[variant] = jax.device_get(evaluate.detect(model, run.state.params, pictured.images))
            if model.deformable and deformable is None:
                deformable = model, run.state.params

    table = report.markdown_table(results)
    print(f"\n{table}")
    print(report.LEGEND)
    (options.out / "results.md").write_text(f"{table}\n{report.LEGEND}\n")
    (options.out / "results.json").write_text(json.dumps({"options": vars(options), "runs": results}, default=str))
    pictures.draw_detections(options.out / "detections.png", pictured, found)
    if deformable:
        model, params = deformable
        layers = jax.device_get(sampling.deformable_layers(model, params, pictured.images))
        pictures.draw_sampling(options.out / "sampling.png", pictured, layers)
    print(f"Table and pictures are in {options.out}.")


def _parse(arguments):
    summary, examples = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m examples.detector",
        description=summary,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, help="what to train (both)")
    add("--steps", type=_positive, default=1600, help="training steps of each run (%(default)s)")
    add("--seeds", type=_positive, default=1, help="runs of each variant (%(default)s)")
    add("--batch-size", type=_positive, default=Recipe.batch_size, help="scenes in a step (%(default)s)")
    add("--learning-rate", type=float, default=Recipe.learning_rate, help="peak learning rate (%(default)s)")
    offset_help = "learning rate of offset layers, as a fraction of that of all others (%(default)s)"
    add("--offset-rate", type=float, default=Recipe.offset_rate, help=offset_help)
    add("--validation-images", type=_positive, default=320, help="scenes to evaluate on (%(default)s)")
    add("--out", type=Path, default=Path("out/detector"), help="folder to write to (%(default)s)")
    resume_help = "go on from the checkpoints in OUT, made with the same options; otherwise they are overwritten"
    add("--resume", action="store_true", help=resume_help)
    return parser.parse_args(arguments)


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be positive, got {value}")
    return value


if __name__ == "__main__":
    main()
