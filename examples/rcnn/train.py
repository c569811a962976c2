"""Fine-tune Mask R-CNN or Faster R-CNN on images with annotations of COCO, YOLO or Pascal VOC.

python -m examples.rcnn.train ANNOTATIONS.json IMAGES --checkpoint CHECKPOINT --validation ANNOTATIONS.json IMAGES
python -m examples.rcnn.train ANNOTATIONS.json IMAGES --backbone resnet50.pth   # from a ResNet of ImageNet
python -m examples.rcnn.train ... --resume           # continue a run that ended early; --steps may have grown
python -m examples.rcnn.train ... --evaluate-only    # the AP of a checkpoint

The result is OUT/model.npz, a checkpoint with mmdet's names for `python -m examples.rcnn`, and OUT/best.npz with the
best AP of boxes on the validation images, or another score (--best).
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import optax

from examples.library import trainer
from examples.library.classes import described
from examples.library.coco import Dataset
from examples.library.devices import fit_on, gathered, shared
from examples.library.files import digest
from examples.library.gradients import by_group, gradients
from examples.library.loop import State, first_state
from examples.library.options import NO_IMAGES, add_recipe, checked, choose_best, read_data, training_parser
from examples.library.precision import Evaluation
from examples.resnet.model import FIRST_LAYERS, PLAIN

from .coco import Loading, average_precision, evaluation_batches, results, training_batches
from .config import REGIONS, Config
from .detector import RCNN, Detections, detect
from .images import padded_sides
from .losses import Batch, losses
from .options import CHECKPOINT_HELP, add_settings, dtype_of, read_backbone, read_checkpoint
from .weights import adapt, initialise, save

PROGRAM = "python -m examples.rcnn.train"
RECIPE_HELP = {
    "batch_size": "images in a step",
    "learning_rate": "peak learning rate, for 16 images in a step",
    "offset_rate": "learning rate of offsets and masks of deformable convolutions, as a fraction",
    "warmup": "steps until the full learning rate, by default at most a fifth of all",
    "weight_decay": "of SGD",
    "clip_norm": "the largest norm of all gradients together",
    "regions": "drawn from each image for the heads",
    "accumulate": "parts of a batch, which are processed one after another",
    "seed": "of the data and all random choices",
    "checkpoint_every": "steps",
    "evaluate_every": "steps",
}


@dataclass(frozen=True)
class Recipe:
    """How to train: mmdet's schedule, whose rate is for 16 images in a step and falls twice by a factor of 10.

    offset_rate: of the parameters that predict offsets and masks, relative to that of the others.
    """

    steps: int
    batch_size: int = 2
    learning_rate: float = 0.02
    offset_rate: float = 0.1
    warmup: int = 500
    decays: tuple[float, ...] = (8 / 12, 11 / 12)
    momentum: float = 0.9
    weight_decay: float = 1e-4
    clip_norm: float = 35.0
    regions: int = REGIONS.count
    accumulate: int = 1
    frozen_stages: bool = True
    seed: int = 0
    checkpoint_every: int = 500
    evaluate_every: int = 1000

    # Of a run that is resumed; its rate then falls at fractions of the new number of steps.
    changeable: ClassVar = ("steps", "warmup", "evaluate_every")

    @property
    def group_rates(self) -> dict[str, float]:
        """The peak learning rate of each group of parameters that is trained."""
        peak = self.learning_rate * self.batch_size / 16
        return {"others": peak, "offsets": peak * self.offset_rate}


def rate(recipe: Recipe, group: str = "others") -> optax.Schedule:
    """The learning rate of a group of parameters: a linear warm-up, then falls at fractions of the training."""
    falls = {round(fraction * recipe.steps): 0.1 for fraction in recipe.decays}
    constant = optax.piecewise_constant_schedule(recipe.group_rates[group], falls)
    warmup = optax.linear_schedule(0.001, 1, max(recipe.warmup, 1))
    return lambda step: constant(step) * warmup(step)


def make_optimiser(recipe: Recipe) -> optax.GradientTransformation:
    """SGD with momentum and weight decay; the stem and the first stage are frozen, as in mmdet, if asked for."""

    def sgd(group):
        decay = optax.add_decayed_weights(recipe.weight_decay)
        return optax.chain(decay, optax.sgd(rate(recipe, group), recipe.momentum))

    def label(path, _):
        names = [entry.key for entry in path]
        if recipe.frozen_stages and names[0] == "backbone" and names[1].startswith(FIRST_LAYERS):
            return "frozen"
        return "offsets" if "conv_offset" in names else "others"

    return by_group({group: sgd(group) for group in recipe.group_rates}, label, recipe.clip_norm)


@partial(jax.jit, static_argnames=("model", "recipe"), donate_argnames="state")
def train_step(
    model: RCNN, recipe: Recipe, statistics: dict, state: State, batch: Batch
) -> tuple[State, dict[str, jax.Array]]:
    """One optimiser step on one batch: the new state, and the losses by name, their sum "loss" and the rate.

    statistics: of the batch norms, which stay what they are.
    """
    key = jax.random.fold_in(jax.random.key(recipe.seed), state.step)
    regions = replace(model.config.regions, count=recipe.regions)

    def loss(params, carry, part, number):
        variables = {"params": params, "batch_stats": statistics}
        return model.apply(variables, part, jax.random.fold_in(key, number), regions, method=losses), carry

    slopes, found, _ = gradients(loss, state.params, {}, batch, recipe.accumulate)
    updates, optimiser = make_optimiser(recipe).update(slopes, state.optimiser, state.params)
    measured = {"loss": sum(found.values()), **found, "rate": rate(recipe)(state.step)}
    return State(state.step + 1, optax.apply_updates(state.params, updates), optimiser), measured


def train(
    model: RCNN,
    variables: dict[str, Any],
    recipe: Recipe,
    batches: Any,
    directory: Path,
    *,
    devices: Sequence[jax.Device] | None = None,
    **options: Any,
) -> Any:
    """Trains a model; its batches are shared by all devices, by default those of all processes. options: of `fit`."""
    return fit_on(
        devices,
        partial(train_step, model, recipe, jax.device_get(variables["batch_stats"])),
        lambda params: first_state(params, make_optimiser(recipe)),
        variables["params"],
        batches,
        recipe,
        directory,
        **options,
    )


def evaluated(model: RCNN, variables: dict, dataset: Dataset, loading: Loading) -> Evaluation:
    """The average precision of a model on a data set, which the processes share."""
    listed = []
    for ids, images in evaluation_batches(dataset, loading, model.config):
        found = jax.device_get(detect(model, variables, shared(images), images.shape[1:3]))
        for row, image in enumerate(ids):
            of_image = Detections(*(part if part is None else part[row] for part in found))
            listed += results(dataset, image, of_image, model.config.scale)
    listed = gathered(listed)
    return Evaluation(listed, average_precision(dataset, listed, model.config.masks))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    options = parse(arguments)
    dataset, validation, model, variables = options.inputs
    loading, statistics = options.loading, jax.device_get(variables["batch_stats"])

    trainer.run(
        PROGRAM,
        options,
        dataset,
        validation,
        partial(train, model, variables, options.recipe, partial(training_batches, dataset, loading)),
        variables,
        kept=lambda state: {"params": state.params, "batch_stats": statistics},
        measure=lambda variables: evaluated(model, variables, validation, loading),
        save=lambda path, variables: save(path, model, variables),
        suffix=".npz",
        settings={
            "size": loading.size,
            "masks": model.config.masks,
            "min_scale": loading.min_scale,
            "plain": options.plain,
            "model": model.config.settings,
            "classes": dataset.names,
            "SHA-256 of the backbone": options.backbone and digest(options.backbone),
        },
        scores=("box AP", "mask AP") if model.config.masks else ("box AP",),
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line, with what they name: data, the model that is trained, and the recipe."""
    start_help = f"where training starts: {CHECKPOINT_HELP} of mmdet; by default, from random weights"
    parser = training_parser(PROGRAM, __doc__, start_help, steps=1000, out="out/rcnn")
    add = parser.add_argument
    add("--backbone", type=Path, help="a ResNet of ImageNet that training starts from, such as torchvision's .pth file")
    size_help = "height and width that training images are made to fit into, multiples of 32, turned as each image; "
    size_help += "they become the scale of the model; by default, the scale of the checkpoint, or 800 1344"
    add("--size", type=int, nargs=2, metavar=("HEIGHT", "WIDTH"), help=size_help)
    scale_help = "fit training images into a random part of the size, from this fraction on (%(default)s)"
    add("--min-scale", type=float, default=1.0, help=scale_help)
    add("--boxes-only", action="store_true", help="train Faster R-CNN, without masks")
    add("--plain", action="store_true", help="only ordinary convolutions, with --backbone or from random weights")
    add_settings(parser)
    add_recipe(parser, Recipe, RECIPE_HELP)
    options = parser.parse_args(arguments)
    chosen = checked(parser, options, RECIPE_HELP)
    if options.checkpoint and options.backbone:
        parser.error("only one of --checkpoint and --backbone must be given")
    if options.checkpoint and options.plain:
        parser.error("--plain must not be given with --checkpoint, which decides which convolutions are deformable")
    if not options.checkpoint and (options.config or (options.set and not options.backbone)):
        parser.error("--config must be given with --checkpoint, and --set with --checkpoint or --backbone")
    try:
        dataset, validation, model, variables = read_inputs(options)
    except (ImportError, OSError, ValueError) as error:
        parser.error(str(error))
    choose_best(parser, options, [*average_precision(NO_IMAGES, [], model.config.masks)])
    config = model.config
    size = options.size or padded_sides(config.scale, config.divisor)
    if any(side % config.divisor or side < config.divisor for side in size):
        parser.error(f"--size must be multiples of {config.divisor}, got {size}")
    if options.size:
        model = model.clone(config=replace(config, scale=(max(size), min(size))))
    defaults = {"warmup": min(Recipe.warmup, options.steps // 5)}
    frozen = bool(options.checkpoint or options.backbone)  # nothing in a random backbone is worth keeping
    options.recipe = Recipe(options.steps, **defaults | chosen, frozen_stages=frozen)
    options.loading = Loading(
        tuple(size),
        options.recipe.batch_size,
        options.objects,
        options.background,
        config.masks,
        options.min_scale,
        mirrors=not options.no_mirror,
        colour=config.mean[:: -1 if config.bgr else 1],
        workers=options.workers,
        processes=options.processes,
        skips_damaged=options.skip_damaged,
        seed=options.recipe.seed,
    )
    options.inputs = dataset, validation, model, variables
    return options


def read_inputs(options: argparse.Namespace) -> tuple[Dataset, Dataset | None, RCNN, dict[str, Any]]:
    """The data to train on and to validate with, and the model that a run starts from, with the classes of the data."""
    key = jax.random.key(options.seed or 0)
    loaded = read_checkpoint(options, dtype_of(options)) if options.checkpoint else None
    masks = not options.boxes_only and (loaded is None or loaded[0].config.masks)
    dataset, validation = read_data(options, masks)
    if not (masks or options.boxes_only) and any(one["has_mask"] for one in dataset.annotations.anns.values()):
        print("The annotations have masks, which are not used, because the checkpoint has no mask head.")
    if loaded:
        model, variables = with_names(loaded[0], dataset), loaded[1]
        if options.evaluate_only and not model.config.names:
            raise ValueError(
                f"the checkpoint does not name its {model.config.classes} classes, so the annotations must have as "
                f"many categories, got {len(dataset.names)}"
            )
        if options.evaluate_only:
            validation = validation.with_classes(model.config.names)
        else:
            print(described(dataset.names, model.config.names), end="")
            model, variables = adapt(model, variables, dataset.names, key)
    else:
        config = Config(tuple(dataset.names), len(dataset.names))
        if options.plain:
            config = replace(config, stage_with_dcn=PLAIN)
        model = RCNN(config, dtype_of(options))
        if options.backbone:
            model, variables = read_backbone(options, model, key)
        else:
            variables = initialise(model, key)
    if (most := max((validation or dataset).counts)) > (kept := model.config.objects.count):
        print(f"The model finds at most {kept} objects in an image (--set objects.count=N), and some have {most}.")
    if model.config.masks and not masks:
        model = model.clone(config=replace(model.config, masks=False))
        params = variables["params"]
        variables = variables | {"params": params | {"roi_head": {"bbox_head": params["roi_head"]["bbox_head"]}}}
    return dataset, validation, model, variables


def with_names(model: RCNN, dataset: Dataset) -> RCNN:
    """A model whose classes, if it does not name them, are those of the annotations, provided that it has as many."""
    if model.config.names or model.config.classes != len(dataset.names):
        return model
    print("The checkpoint does not name its classes. They are taken to be those of the annotations, in this order.")
    return model.clone(config=replace(model.config, names=tuple(dataset.names)))


if __name__ == "__main__":
    main()
