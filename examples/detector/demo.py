"""Train a detector with deformable layers, score it, and draw what it detects and where its layers sample.

python -m examples.detector.demo
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
from matplotlib.figure import Figure

from examples.library.command_line import Parser
from examples.library.files import replaced
from examples.library.loop import Options
from examples.library.objects import check_picture
from examples.library.trainer import ending
from examples.library.training import train

from . import evaluate, scenes
from .model import Detector, detect
from .pictures import clearest_object, draw_scene, strongest_class
from .sampling import add_legend, deformable_layers, draw_samples
from .train import RECIPE, task_of

PICTURED_SCENES = 8
WIDTHS, BLOCKS = (16, 32, 64, 64), (1, 1, 2)  # fewer than by default, so that it is trained in a minute


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    parser = Parser("python -m examples.detector.demo", __doc__)
    parser.add_argument("--steps", type=int, default=1000, help="training steps (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=4, help="scenes in a step (%(default)s)")
    parser.add_argument("--validation-images", type=int, default=160, help="scenes to score (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out", "demo.png"), help="the picture (%(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoints of an interrupted run")
    options = parser.parse_args(arguments)
    for name in ("steps", "batch_size", "validation_images"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be positive, got {getattr(options, name)}")
    out = options.out
    check_picture(parser, "--out", out)
    model = Detector(len(scenes.CLASSES), WIDTHS, BLOCKS)
    print("Training: one to two minutes on two CPU cores, after some seconds for compiling")
    recipe = replace(RECIPE, steps=options.steps, batch_size=options.batch_size, warmup=options.steps // 20)
    how = Options("resume" if options.resume else "overwrite", devices=jax.devices()[:1])
    with ending(parser.prog):
        finished = train(task_of(model, recipe), out.with_suffix(""), how)
    params = jax.device_get(finished.state.best["params"])
    print("Detecting digits in scenes that the training has not shown: a few seconds")
    truth = list(evaluate.validation_batches(options.validation_images, options.batch_size))
    found = [jax.device_get(detect(model, params, batch.images)) for batch in truth]
    scores = evaluate.average_precision(truth, found)
    print(", ".join(f"{name} {100 * scores[name]:.1f} %" for name in ("AP", "AP50", "AP75")))
    with replaced(out) as file:
        draw(file, model, params)
    print(f"The picture {out} shows detections, and where the deformable layers sample.")


def draw(path: Path, model: Detector, params: dict) -> None:
    """Draws scenes with a small, a medium and a large object, and what the last two layers sample for each of them."""
    sizes = list(evaluate.SIZE_LIMITS)
    figure = Figure(figsize=(13.5, 11), layout="constrained")
    axes = figure.subplots(2, len(sizes))
    for size, (found_panel, sampled_panel) in enumerate(axes.T):
        numbers = range(size, PICTURED_SCENES * len(sizes), len(sizes))
        batch = scenes.make_batch("validation", evaluate.VALIDATION_SEED, numbers)
        found = strongest_class(jax.device_get(detect(model, params, batch.images)))
        image, which = clearest_object(batch, size)
        draw_scene(found_panel, batch.images[image], found, image)
        found_panel.set_title("detections", fontsize=14)
        draw_samples(sampled_panel, deformable_layers(model, params, batch.images), 2, batch, (image, which))
        sampled_panel.set_title(f"samples of two layers in a {sizes[size]} object", fontsize=14)
    add_legend(figure, axes[1])
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main()
