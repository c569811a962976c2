"""Train a Deformable DETR, RT-DETR, RT-DETRv2 or D-FINE on images with annotations in the format of COCO.

python -m examples.detr.train ANNOTATIONS.json IMAGES --checkpoint FOLDER --validation ANNOTATIONS.json IMAGES
python -m examples.detr.train ANNOTATIONS.json IMAGES --config config.json    # from random weights
python -m examples.detr.train ... --resume                                    # continue a run that was interrupted

FOLDER is a checkpoint of transformers; its classes are replaced by those of the annotations. The result is OUT/model, a
checkpoint of the same format, and OUT/best with the best AP on the validation images.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from examples.library import curves
from examples.library.coco import Dataset, read
from examples.library.loop import Run, Start, fit

from . import weights
from .criterion import Criterion
from .data import Batch, Loading, training_batches
from .denoising import count, draw, make_denoising
from .evaluate import Detector, average_precision
from .evaluate import draw as draw_objects
from .optimiser import RECIPES, Recipe, make_optimiser, moved_average, rate
from .weights import Checkpoint

STRIDE = 32


@struct.dataclass
class State:
    """Everything that a step changes: average is the moving average of the variables, None if there is none."""

    step: jax.Array
    variables: dict[str, Any]
    optimiser: optax.OptState
    average: dict[str, Any] | None

    @property
    def best(self) -> dict[str, Any]:
        """The variables to evaluate and to keep."""
        return self.variables if self.average is None else self.average


def first_state(variables: dict[str, Any], recipe: Recipe) -> State:
    """The state before the first step."""
    average = jax.tree.map(jnp.copy, variables) if recipe.ema else None
    return State(jnp.zeros((), jnp.int32), variables, make_optimiser(recipe).init(variables["params"]), average)


@partial(jax.jit, static_argnames=("detector", "criterion", "recipe"), donate_argnames="state")
def train_step(
    detector: Detector, criterion: Criterion, recipe: Recipe, state: State, batch: Batch
) -> tuple[State, dict[str, jax.Array]]:
    """One optimiser step on one batch: the new state, and the losses by name, their sum "loss" and the rate."""
    key = jax.random.fold_in(jax.random.key(recipe.seed), state.step)
    params, statistics = state.variables["params"], state.variables.get("batch_stats", {})

    def gradient(statistics, part):
        index, batch = part

        def loss(params):
            variables = {"params": params, "batch_stats": statistics}
            found, after = losses(detector, criterion, variables, batch, jax.random.fold_in(key, index))
            return sum(found.values()), (found, after)

        gradients, (found, statistics) = jax.grad(loss, has_aux=True)(params)
        return statistics, (gradients, found)

    if recipe.accumulate == 1:
        statistics, (gradients, found) = gradient(statistics, (0, batch))
    else:
        parts = jax.tree.map(lambda leaf: leaf.reshape(recipe.accumulate, -1, *leaf.shape[1:]), batch)
        statistics, stacked = jax.lax.scan(gradient, statistics, (jnp.arange(recipe.accumulate), parts))
        gradients, found = jax.tree.map(lambda leaf: leaf.mean(0), stacked)
    updates, optimiser = make_optimiser(recipe).update(gradients, state.optimiser, params)
    variables = {"params": optax.apply_updates(params, updates), "batch_stats": statistics}
    average = state.average
    if average is not None:
        average = moved_average(recipe, average, variables, state.step)
    measured = {"loss": sum(found.values()), **found, "rate": rate(recipe)(state.step)}
    return State(state.step + 1, variables, optimiser, average), measured


def losses(
    detector: Detector, criterion: Criterion, variables: dict[str, Any], batch: Batch, key: jax.Array
) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """The weighted losses by name, and the statistics of batch normalisations after the batch."""
    config = detector.model.config
    noise_key, dropout_key = jax.random.split(key)
    denoising, keywords = None, {}
    if getattr(config, "num_denoising", 0):
        draws = draw(noise_key, count(config.num_denoising, batch.targets), batch.targets, config.num_labels)
        denoising = make_denoising(
            draws,
            batch.targets,
            classes=config.num_labels,
            num_queries=config.num_queries,
            num_denoising=config.num_denoising,
            label_noise_ratio=config.label_noise_ratio,
            box_noise_scale=config.box_noise_scale,
        )
        keywords = {"denoising": denoising}
    outputs, updated = detector.model.apply(
        variables,
        *detector.arguments(batch),
        train=True,
        rngs={"dropout": dropout_key},
        mutable=["batch_stats"],
        **keywords,
    )
    return criterion(outputs, batch.targets, denoising), updated["batch_stats"]


def train(
    checkpoint: Checkpoint,
    recipe: Recipe,
    batches: Callable[[range], Any],
    directory: Path,
    *,
    evaluate: Callable[[dict[str, Any], int], dict[str, float]] | None = None,
    devices: Sequence[jax.Device] | None = None,
    **options: Any,
) -> Run:
    """Trains the model of a checkpoint; its batches are shared by all devices, by default those of the process.

    evaluate: takes variables and the number of their steps. options: of `fit`.
    """
    devices = devices or jax.devices()
    if recipe.batch_size % (len(devices) * recipe.accumulate):
        raise ValueError(
            f"batch_size must be a multiple of {len(devices)} devices times accumulate={recipe.accumulate}, got "
            f"{recipe.batch_size}"
        )
    mesh = jax.make_mesh((len(devices),), ("data",), (AxisType.Auto,), devices=devices)
    split, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    make = jax.jit(partial(first_state, recipe=recipe), out_shardings=whole)
    detector, criterion = Detector.of(checkpoint), weights.criterion(checkpoint)

    def step(state, batch):
        return train_step(detector, criterion, recipe, state, jax.device_put(batch, split))

    with jax.set_mesh(mesh):
        shapes = make.eval_shape(checkpoint.variables)
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole), shapes)
        return fit(
            step,
            Start(lambda: make(checkpoint.variables), like),
            batches,
            recipe,
            directory,
            evaluate=evaluate and (lambda state, count: evaluate(state.best, count)),
            **options,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    options = parse(arguments)
    dataset, validation, checkpoint = options.inputs
    recipe, loading, out = options.recipe, options.loading, options.out
    testing = replace(loading, augmented=False, sizes=loading.sizes[-1:])
    detector = Detector.of(checkpoint)

    def evaluate(variables, steps):
        scores = average_precision(detector, variables, validation, testing)
        best = max((one["AP"] for one in known.values()), default=-1.0)
        known[steps] = scores
        print(f"step {steps}: " + ", ".join(f"{name} {100 * score:.1f}" for name, score in scores.items()))
        if scores["AP"] > best:
            weights.save(out / "best", checkpoint._replace(variables=jax.device_get(variables)))
        return scores

    known: dict[int, dict[str, float]] = {}
    run = train(
        checkpoint,
        recipe,
        partial(training_batches, dataset, loading),
        out / "checkpoints",
        evaluate=evaluate if validation else None,
        devices=jax.devices()[: options.devices],
        resume=options.resume,
        overwrite=options.overwrite,
    )
    variables = jax.device_get(run.state.best)
    weights.save(out / "model", checkpoint._replace(variables=variables))
    result = {"recipe": vars(recipe), "names": dataset.names, "waiting": run.waiting}
    (out / "results.json").write_text(json.dumps(result | {"scores": run.scores, "history": run.history}))
    curves.draw(out / "curves.png", run)
    draw_objects(out / "detections.png", detector, variables, validation or dataset, testing)
    print(f"The checkpoint is {out / 'model'}. The loop waited for data {run.waiting:.0%} of the time.")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line, with the files that they name."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.detr.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("annotations", type=Path, help="a JSON file of COCO's format")
    add("images", type=Path, help="the folder of its images")
    add("--checkpoint", type=Path, help="where training starts: a folder with config.json and model.safetensors")
    add("--config", type=Path, help="a config.json, to start from random weights")
    add("--validation", type=Path, nargs=2, metavar=("ANNOTATIONS", "IMAGES"), help="what to compute AP on")
    sizes_help = f"sides of images, multiples of {STRIDE}, one for each batch; the last is for evaluation (%(default)s)"
    add("--sizes", type=int, nargs="+", default=[480, 544, 608, 672, 736, 800, 640], help=sizes_help)
    add("--objects", type=int, default=100, help="how many objects of an image are trained on at most (%(default)s)")
    add("--no-mirror", action="store_true", help="mirror no image, for objects that have a left and a right side")
    add("--no-augmentation", action="store_true", help="only resize images, and mirror them")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="of products (%(default)s)")
    add("--devices", type=int, help="how many devices share each batch; by default all")
    add("--workers", type=int, default=2, help="threads that load images (%(default)s)")
    add("--steps", type=int, default=10000, help="%(default)s")
    for name, what in RECIPE_HELP.items():
        kind = int if isinstance(getattr(Recipe, name), int) else float
        add(f"--{name.replace('_', '-')}", type=kind, help=f"{what}; by default, as its authors have trained the model")
    add("--out", type=Path, default=Path("out/detr"), help="folder to write to (%(default)s)")
    add("--resume", action="store_true", help="go on from the checkpoints in OUT; --steps may have grown")
    add("--overwrite", action="store_true", help="delete the checkpoints of another run in OUT")
    options = parser.parse_args(arguments)
    for name in (
        "steps",
        "objects",
        "workers",
        "devices",
        "batch_size",
        "accumulate",
        "checkpoint_every",
        "evaluate_every",
    ):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be positive, got {getattr(options, name)}")
    if any(side % STRIDE or side < STRIDE for side in options.sizes):
        parser.error(f"--sizes must be multiples of {STRIDE}, got {options.sizes}")
    if (options.checkpoint is None) == (options.config is None):
        parser.error("either --checkpoint or --config must be given")
    try:
        dataset = read(options.annotations, options.images)
        validation = read(*options.validation) if options.validation else None
        checkpoint = start(options, dataset)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    chosen = {name: getattr(options, name) for name in RECIPE_HELP if getattr(options, name) is not None}
    options.recipe = Recipe(options.steps, **RECIPES[checkpoint.model_type] | chosen)
    if options.recipe.warmup > options.steps:
        parser.error(f"--warmup must be at most --steps, got {options.recipe.warmup} and {options.steps}")
    options.loading = Loading(
        tuple((side, side) for side in options.sizes),
        options.recipe.batch_size,
        options.objects,
        keeps_ratio=checkpoint.model_type == "deformable_detr",
        augmented=not options.no_augmentation,
        mirrors=not options.no_mirror,
        workers=options.workers,
        seed=options.recipe.seed,
    )
    options.inputs = dataset, validation, checkpoint
    return options


RECIPE_HELP = {
    "batch_size": "images in a step",
    "learning_rate": "peak learning rate",
    "backbone_rate": "learning rate of the backbone, as a fraction",
    "slow_rate": "learning rate of sampling offsets and reference points, as a fraction",
    "warmup": "steps until the full learning rate",
    "decay_from": "the fraction of the steps from which on the rate is a tenth",
    "weight_decay": "of AdamW",
    "clip_norm": "the largest norm of all gradients together",
    "ema": "decay of the moving average of the weights, 0 for none",
    "ema_warmup": "steps of its warm-up",
    "accumulate": "parts of a batch, of which one is in memory at a time",
    "seed": "of the data and all random choices",
    "checkpoint_every": "steps",
    "evaluate_every": "steps",
}


def start(options: argparse.Namespace, dataset: Dataset) -> Checkpoint:
    """The checkpoint that a run starts from, with the classes of the data."""
    dtype, key = jnp.dtype(options.dtype), jax.random.key(options.seed or 0)
    if options.checkpoint:
        return weights.adapt(weights.load(options.checkpoint, dtype), dataset.names, key)
    config = weights.read_config(options.config)
    return weights.initialise(weights.with_labels(config, dataset.names), key, dtype)


if __name__ == "__main__":
    main()
