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
from typing import Any

import jax
import jax.numpy as jnp

from examples.library import loading, trainer
from examples.library.classes import described
from examples.library.coco import Dataset
from examples.library.command_line import COUNT, number
from examples.library.files import digest
from examples.library.options import NO_IMAGES, TrainingParser, choose_best, chosen_recipe, for_loading, read_data
from examples.library.precision import Evaluation
from examples.library.recipe import Recipe
from examples.library.training import Results, Task, Validation
from examples.resnet.model import FIRST_PARAMETERS, PLAIN

from .coco import Loading, average_precision, evaluation_batches, results, training_batches
from .config import REGIONS, Config
from .detector import RCNN, detect
from .images import padded_sides
from .losses import Batch, losses
from .options import CHECKPOINT_HELP, add_settings, read_backbone, read_checkpoint
from .weights import adapt, initialise, save

PROGRAM = "python -m examples.rcnn.train"
# mmdet's schedule, whose rate is for 16 images in a step and falls twice. Offsets have a tenth of it.
RECIPE = Recipe(
    learning_rate=0.02,
    reference_batch=16,
    offset_rate=0.1,
    warmup_from=0.001,
    decays=(8 / 12, 11 / 12),
    rule="sgd",
    norm_decay=True,
    clip_norm=35.0,
    frozen=FIRST_PARAMETERS,
)


@dataclass(frozen=True)
class Loss:
    """The losses of a batch by name, of so many regions of each image, and the statistics, which stay what they are."""

    model: RCNN
    regions: int = REGIONS.count

    def __call__(
        self, variables: dict[str, Any], batch: Batch, key: jax.Array
    ) -> tuple[dict[str, jax.Array], dict[str, Any]]:
        regions = replace(self.model.config.regions, count=self.regions)
        return self.model.apply(variables, batch, key, regions, method=losses), variables["batch_stats"]


def evaluated(model: RCNN, variables: dict, dataset: Dataset, settings: Loading) -> Evaluation:
    """The average precision of a model on a data set, which the processes share."""
    return loading.evaluated(
        evaluation_batches(dataset, settings, model.config),
        lambda images: detect(model, variables, images, images.shape[1:3]),
        lambda image, found: results(dataset, image, found, model.config.scale),
        partial(average_precision, dataset, masks=model.config.masks),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    options = parse(arguments)
    dataset, validation, model, variables = options.inputs
    drawn = ("box AP", "mask AP") if model.config.masks else ("box AP",)
    task = Task(
        options.recipe,
        variables,
        Loss(model, options.regions),
        partial(training_batches, dataset, options.loading),
        validation
        and Validation(
            lambda variables: evaluated(model, variables, validation, options.loading), options.best, validation, drawn
        ),
        Results(lambda path, variables: save(path, model, variables), ".npz"),
    )
    settings = {
        "size": options.loading.size,
        "masks": model.config.masks,
        "min_scale": options.min_scale,
        "regions": options.regions,
        "plain": options.plain,
        "model": model.config.settings,
        "SHA-256 of the backbone": options.backbone and digest(options.backbone),
    }
    trainer.run(PROGRAM, options, task, dataset, settings)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line, with what they name: data, the model that is trained, and the recipe."""
    start_help = f"where training starts: {CHECKPOINT_HELP} of mmdet; by default, from random weights"
    parser = TrainingParser(PROGRAM, __doc__, start_help, {"rcnn": RECIPE}, "out/rcnn")
    add, add_for_training = parser.add_argument, parser.add_for_training
    backbone_help = "a ResNet of ImageNet that training starts from, such as torchvision's .pth file"
    add_for_training("--backbone", type=Path, help=backbone_help)
    size_help = "height and width that training images are made to fit into, multiples of 32, turned as each image; "
    size_help += "they become the scale of the model; by default, the scale of the checkpoint, or 800 1344"
    add("--size", type=int, nargs=2, metavar=("HEIGHT", "WIDTH"), help=size_help)
    scale_help = "fit training images into a random part of the size, from this fraction on (%(default)s)"
    add_for_training("--min-scale", type=number(float, 0.1, 1), default=1.0, help=scale_help)
    regions_help = "drawn from each image for the heads (%(default)s)"
    add_for_training("--regions", type=COUNT, default=REGIONS.count, help=regions_help)
    add("--boxes-only", action="store_true", help="train Faster R-CNN, without masks")
    plain_help = "only ordinary convolutions, with --backbone or from random weights"
    add_for_training("--plain", action="store_true", help=plain_help)
    add_settings(parser)
    options = parser.parse_args(arguments)
    if options.checkpoint and options.backbone:
        parser.error("only one of --checkpoint and --backbone must be given")
    if options.checkpoint and options.plain:
        parser.error("--plain must not be given with --checkpoint, which decides which convolutions are deformable")
    if not options.checkpoint and (options.config or (options.set and not options.backbone)):
        parser.error("--config must be given with --checkpoint, and --set with --checkpoint or --backbone")
    with parser.reporting():
        dataset, validation, model, variables = read_inputs(options)
    choose_best(parser, options, [*average_precision(NO_IMAGES, [], model.config.masks)])
    config = model.config
    size = options.size or padded_sides(config.scale, config.divisor)
    if any(side % config.divisor or side < config.divisor for side in size):
        parser.error(f"--size must be multiples of {config.divisor}, got {size}")
    if options.size:
        model = model.clone(config=replace(config, scale=(max(size), min(size))))
    is_random = not (options.checkpoint or options.backbone)  # nothing in a random backbone is worth keeping
    options.recipe = chosen_recipe(options, replace(RECIPE, frozen=()) if is_random else RECIPE)
    options.loading = Loading(
        tuple(size),
        masks=config.masks,
        min_scale=options.min_scale,
        colour=config.mean[:: -1 if config.bgr else 1],
        **for_loading(options, options.recipe),
    )
    options.inputs = dataset, validation, model, variables
    return options


def read_inputs(options: argparse.Namespace) -> tuple[Dataset, Dataset | None, RCNN, dict[str, Any]]:
    """The data to train on and to validate with, and the model that a run starts from, with the classes of the data."""
    key = jax.random.key(options.seed or 0)
    loaded = read_checkpoint(options, jnp.dtype(options.dtype)) if options.checkpoint else None
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
        model = RCNN(config, jnp.dtype(options.dtype))
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
