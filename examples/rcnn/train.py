"""Fine-tune Mask R-CNN or Faster R-CNN on images with annotations in the format of COCO.

python -m examples.rcnn.train ANNOTATIONS.json IMAGES --checkpoint CHECKPOINT --steps 5000
python -m examples.rcnn.train ANNOTATIONS.json IMAGES --checkpoint CHECKPOINT --validation ANNOTATIONS.json IMAGES
python -m examples.rcnn.train ... --resume    # continue a run that was interrupted

The result is OUT/model.npz, a checkpoint with mmdet's names for `python -m examples.rcnn`.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import jax
import numpy as np
import optax

from examples.library.coco import Dataset, ImageError
from examples.library.loop import Start, StartError, State, first_state, fit, update
from examples.library.options import read_data, require_positive, training_parser
from examples.resnet.model import FIRST_LAYERS
from jax_dcn import interop

from . import coco
from .config import REGIONS, Config
from .detector import RCNN, Detections, detect
from .images import DIVISOR
from .losses import Batch, losses
from .weights import adapt, initialise, load

PROGRAM = "python -m examples.rcnn.train"


@dataclass(frozen=True)
class Recipe:
    """How to train: mmdet's schedule, whose rate is for 16 images in a step and falls twice by a factor of 10."""

    steps: int
    batch_size: int = 2
    learning_rate: float = 0.02
    warmup: int = 500
    decays: tuple[float, ...] = (8 / 12, 11 / 12)
    momentum: float = 0.9
    weight_decay: float = 1e-4
    clip_norm: float = 35.0
    regions: int = REGIONS.count
    frozen_stages: bool = True
    seed: int = 0
    checkpoint_every: int = 500

    changeable: ClassVar = ("steps",)  # of a run that is resumed, whose rate then falls at fractions of the new number


def rate(recipe: Recipe) -> optax.Schedule:
    """The learning rate of a step: a linear warm-up, then a constant that falls at fractions of the training."""
    peak = recipe.learning_rate * recipe.batch_size / 16
    falls = {round(fraction * recipe.steps): 0.1 for fraction in recipe.decays}
    constant = optax.piecewise_constant_schedule(peak, falls)
    warmup = optax.linear_schedule(0.001, 1, max(recipe.warmup, 1))
    return lambda step: constant(step) * warmup(step)


def make_optimiser(recipe: Recipe) -> optax.GradientTransformation:
    """SGD with momentum and weight decay; the stem and the first stage are frozen, as in mmdet, if asked for."""
    sgd = optax.chain(
        optax.clip_by_global_norm(recipe.clip_norm),
        optax.add_decayed_weights(recipe.weight_decay),
        optax.sgd(rate(recipe), recipe.momentum),
    )

    def label(path, _):
        stage = path[1].key if path[0].key == "backbone" else ""
        return "frozen" if recipe.frozen_stages and stage.startswith(FIRST_LAYERS) else "trained"

    kinds = {"trained": sgd, "frozen": optax.set_to_zero()}
    return optax.partition(kinds, partial(jax.tree_util.tree_map_with_path, label))


@partial(jax.jit, static_argnames=("model", "recipe"), donate_argnames="state")
def train_step(
    model: RCNN, recipe: Recipe, statistics: dict, state: State, batch: Batch
) -> tuple[State, dict[str, jax.Array]]:
    """One optimiser step on one batch: the new state, and the loss before the step.

    statistics: of the batch norms, which stay what they are.
    """

    def loss(params):
        key = jax.random.fold_in(jax.random.key(recipe.seed), state.step)
        regions = replace(model.config.regions, count=recipe.regions)
        found = model.apply({"params": params, "batch_stats": statistics}, batch, key, regions, method=losses)
        return sum(found.values())

    return update(state, make_optimiser(recipe), loss)


def evaluate(model: RCNN, variables: dict, dataset: Dataset, batch_size: int, size: tuple[int, int]) -> dict:
    """The average precision of a model on a data set."""
    listed = []
    for ids, images in coco.evaluation_batches(dataset, batch_size, size):
        found = jax.device_get(detect(model, variables, images, size))
        for row, image in enumerate(ids):
            of_image = Detections(*(part if part is None else part[row] for part in found))
            listed += coco.results(dataset, image, of_image, size)
    return coco.average_precision(dataset, listed, model.config.masks)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    options = parse(arguments)
    dataset, validation, loaded = options.inputs
    key = jax.random.key(options.seed)
    if loaded:
        model, variables = adapt(*loaded, len(dataset.categories), key)
    else:
        model = RCNN(Config(classes=len(dataset.categories)))
        variables = initialise(model, key)
    model = RCNN(replace(model.config, masks=model.config.masks and not options.boxes_only))
    names = ("steps", "batch_size", "learning_rate", "warmup", "regions", "seed", "checkpoint_every")
    recipe = Recipe(**{name: getattr(options, name) for name in names}, frozen_stages=bool(options.checkpoint))
    params, statistics = variables["params"], variables["batch_stats"]
    if not model.config.masks:
        params = params | {"roi_head": {"bbox_head": params["roi_head"]["bbox_head"]}}

    def make():
        return first_state(params, make_optimiser(recipe))

    size = tuple(options.size)
    try:
        run = fit(
            partial(train_step, model, recipe, statistics),
            Start(make, jax.eval_shape(make)),
            lambda steps: coco.training_batches(
                dataset,
                recipe.seed,
                steps,
                recipe.batch_size,
                size,
                objects=options.objects,
                masks=model.config.masks,
                mirror=not options.no_mirror,
            ),
            recipe,
            options.out / "checkpoints",
            settings={
                "size": size,
                "objects": options.objects,
                "masks": model.config.masks,
                "mirrors": not options.no_mirror,
                "classes": dataset.names,
                "images": len(dataset.images),
            },
            resume=options.resume,
            overwrite=options.overwrite,
        )
    except (StartError, ImageError) as error:
        raise SystemExit(f"{PROGRAM}: error: {error}") from error
    variables = {"params": run.state.params, "batch_stats": statistics}
    options.out.mkdir(parents=True, exist_ok=True)
    np.savez(options.out / "model.npz", **interop.to_torch(variables))
    result = {"losses": run.losses, "milliseconds": run.milliseconds, "names": dataset.names}
    if validation:
        result["scores"] = evaluate(model, variables, validation, recipe.batch_size, size)
        print(", ".join(f"{name} {100 * score:.1f}" for name, score in result["scores"].items()))
    (options.out / "results.json").write_text(json.dumps(result))
    print(f"The checkpoint is {options.out / 'model.npz'}.")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line, with the files that they name."""
    checkpoint_help = "where training starts: a file of mmdet; by default, from random weights"
    parser = training_parser(PROGRAM, __doc__, checkpoint_help, objects=50, out="out/rcnn")
    add = parser.add_argument
    size_help = f"height and width that images are made to fit into, multiples of {DIVISOR} (%(default)s)"
    add("--size", type=int, nargs=2, default=(800, 1344), metavar=("HEIGHT", "WIDTH"), help=size_help)
    add("--boxes-only", action="store_true", help="train Faster R-CNN, without masks")
    add("--steps", type=int, default=1000, help="%(default)s")
    add("--batch-size", type=int, default=Recipe.batch_size, help="%(default)s")
    add("--learning-rate", type=float, default=Recipe.learning_rate, help="for 16 images in a step (%(default)s)")
    add("--warmup", type=int, default=Recipe.warmup, help="steps until the full learning rate (%(default)s)")
    add("--regions", type=int, default=Recipe.regions, help="drawn from each image for the heads (%(default)s)")
    add("--seed", type=int, default=Recipe.seed, help="of the data and all random choices (%(default)s)")
    add("--checkpoint-every", type=int, default=Recipe.checkpoint_every, help="steps (%(default)s)")
    options = parser.parse_args(arguments)
    require_positive(parser, options, ("steps", "objects", "batch_size", "regions", "checkpoint_every"))
    if any(side % DIVISOR or side < DIVISOR for side in options.size):
        parser.error(f"--size must be multiples of {DIVISOR}, got {options.size}")
    try:
        loaded = load(options.checkpoint) if options.checkpoint else None
        masks = not options.boxes_only and (loaded is None or loaded[0].config.masks)
        options.inputs = *read_data(options, masks), loaded
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return options


if __name__ == "__main__":
    main()
