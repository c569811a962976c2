"""Train a detection transformer on images with annotations of COCO, YOLO or Pascal VOC.

The models are Deformable DETR, RT-DETR, RT-DETRv2, D-FINE, LW-DETR and RF-DETR.

python -m examples.detr.train ANNOTATIONS.json IMAGES --checkpoint FOLDER --validation ANNOTATIONS.json IMAGES
python -m examples.detr.train data.yaml --checkpoint FOLDER --validation data.yaml    # a data set of YOLO
python -m examples.detr.train ANNOTATIONS.json IMAGES --config config.json    # from random weights
python -m examples.detr.train ... --resume                                    # continue a run that ended early
python -m examples.detr.train ... --evaluate-only                             # the AP of a checkpoint

FOLDER is a checkpoint of transformers; its classes are replaced by those of the annotations. The result is OUT/model, a
checkpoint of the same format, and OUT/best with the best AP on the validation images, or another score (--best).
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from examples.library import classes, precision, trainer
from examples.library.augment import MIN_SIDE
from examples.library.coco import Dataset
from examples.library.files import Watched, naming, read_object
from examples.library.options import NO_IMAGES, TrainingParser, choose_best, chosen_recipe, for_loading, read_data
from examples.library.training import Results, Task, Validation

from . import weights
from .config import LwDetrConfig, RfDetrConfig
from .criterion import UNUSED, UNUSED_OF_LW_DETR
from .data import Loading, fitted_shape, training_batches
from .evaluate import Detector, draw, evaluated
from .images import SIDES, Preprocessor
from .recipes import RECIPES, Loss, recipe_of
from .weights import Checkpoint, stride_of

SIZES = [480, 544, 608, 672, 736, 800, 640]
WITH_BATCH_NORMS = ("rt_detr", "rt_detr_v2", "d_fine", "deimv2")  # in the backbone; those of others are constants
CROPPED = ("deformable_detr", "lw_detr", "rf_detr")  # models whose authors' augmentation is a random crop
PROGRAM = "python -m examples.detr.train"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    options = parse(arguments)
    dataset, validation, checkpoint = options.inputs
    detector, evaluation = Detector.of(checkpoint), (checkpoint.processor, options.loading)
    task = Task(
        options.recipe,
        checkpoint.variables,
        Loss.of(checkpoint),
        partial(training_batches, dataset, options.loading),
        validation
        and Validation(
            lambda variables: evaluated(detector, variables, validation, *evaluation),
            options.best,
            validation,
            ("AP", "AP50"),
        ),
        Results(
            lambda path, variables: weights.save(path, checkpoint._replace(variables=variables)),
            draw=lambda path, variables: draw(path, detector, variables, validation or dataset, *evaluation),
        ),
    )
    settings = {"sizes": options.sizes, "augmented": options.loading.augmented, "config": checkpoint.config}
    trainer.run(PROGRAM, options, task, dataset, settings)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line, with the files that they name."""
    checkpoint_help = "where training starts: a folder with config.json and model.safetensors"
    parser = TrainingParser(PROGRAM, __doc__, checkpoint_help, RECIPES, "out/detr")
    add = parser.add_for_training
    add("--config", type=Path, help="a config.json, to start from random weights")
    add("--no-augmentation", action="store_true", help="only resize images, and mirror them")
    sizes_help = "sides of images, one for each batch, of which the last is for evaluation: multiples of 32, or of all "
    sizes_help += f"windows of LW-DETR and RF-DETR; by default {SIZES}, for these two models sides around that of the "
    sizes_help += "checkpoint, and those of the checkpoint with --evaluate-only"
    parser.add_argument("--sizes", type=int, nargs="+", help=sizes_help)
    options = parser.parse_args(arguments)
    takes_sizes_of_checkpoint = options.evaluate_only and not options.sizes
    if (options.checkpoint is None) == (options.config is None):
        parser.error("either --checkpoint or --config must be given")
    choose_best(parser, options, [*precision.average_precision(NO_IMAGES.annotations, [])])
    with parser.reporting():
        dataset, validation = read_data(options)
        checkpoint = start(options, dataset)
        options.sizes = options.sizes or usual_sizes(checkpoint)
        if options.evaluate_only:
            validation = validation.with_classes(checkpoint.labels)
            if len(options.sizes) > 1 and not takes_sizes_of_checkpoint:
                print(f"Images are evaluated at {options.sizes[-1]} pixels, the last of --sizes.")
        else:
            check_counts(dataset, options.objects, checkpoint.model.config.num_queries)
            print_small_objects(dataset, min(options.sizes), checkpoint.model_type == "deformable_detr")
        if takes_sizes_of_checkpoint:
            processor = for_batches(checkpoint, validation, options.sizes[-1])
        else:
            processor = checkpoint.processor.for_training(checkpoint.model_type, options.sizes[-1])
            if validation:
                image_sizes(processor, validation)  # raises if an image cannot be evaluated
        checkpoint = checkpoint._replace(processor=processor)
    recipe = recipe_of(checkpoint)
    if options.config:  # nothing in a random backbone is worth keeping
        factors = tuple(one for one in recipe.factors if not one[0].startswith("backbone"))
        recipe = replace(recipe, backbone_rate=1.0, frozen=(), factors=factors)
    options.recipe = chosen_recipe(options, recipe)
    options.loading = Loading(
        tuple((side, side) for side in options.sizes),
        keeps_ratio=checkpoint.model_type == "deformable_detr",
        crops=checkpoint.model_type in CROPPED,
        augmented=not options.no_augmentation,
        resample=checkpoint.processor.resample,
        **for_loading(options, options.recipe),
    )
    options.inputs = dataset, validation, checkpoint
    return options


def start(options: argparse.Namespace, dataset: Dataset) -> Checkpoint:
    """The checkpoint that a run starts from, with the classes of the data, or as it is to be evaluated."""
    dtype, key = jnp.dtype(options.dtype), jax.random.key(options.seed or 0)
    if options.checkpoint:
        found = weights.load(options.checkpoint, dtype)
        check_sizes(options.sizes, found.model)
        if not options.evaluate_only:
            print(classes.described(dataset.names, found.labels), end="")
            found = weights.adapt(found, dataset.names, key)
    else:
        config = read_object(options.config)
        if config.get("model_type") in WITH_BATCH_NORMS:
            config = {"freeze_backbone_batch_norms": False} | config
        config = Watched(weights.with_labels(config, dataset.names))
        check_sizes(options.sizes, weights.make_model(config))
        found = weights.initialise(config, key, dtype)
        if without_effect := [name for name in config.unused() if name not in UNUSED_OF_LW_DETR]:
            print(f"Settings in {options.config} without an effect: {', '.join(without_effect)}")
        processor, settings = weights.processor_settings(options.config.parent)
        if settings:
            print(f"{processor} is not used, because training starts from random weights.")
    usual = UNUSED_OF_LW_DETR if isinstance(found.model.config, LwDetrConfig) else UNUSED
    unused = [f"{name}={found.config[name]}" for name, value in usual.items() if found.config.get(name, value) != value]
    if unused and not options.evaluate_only:
        print(f"The losses are those of the authors' code, without these settings of config.json: {', '.join(unused)}")
    return found


def check_sizes(sizes: Sequence[int] | None, model: nn.Module) -> None:
    """Raises ValueError if a model cannot take images with one of these sides."""
    stride = stride_of(model)
    if any(side % stride or side < stride for side in sizes or ()):
        raise ValueError(f"--sizes must be multiples of {stride}, got {sizes}")


def usual_sizes(checkpoint: Checkpoint) -> list[int]:
    """The sides of images that a model is trained with, as by its authors; the last one is for evaluation.

    Those of LW-DETR and RF-DETR lie around the side of the checkpoint's images, or around 640.
    """
    config = checkpoint.model.config
    if not isinstance(config, LwDetrConfig):
        return SIZES
    side = (checkpoint.processor.size or {}).get("height", SIZES[-1]) // config.stride
    around = range(side - 5, side + 6) if isinstance(config, RfDetrConfig) else range(side - 3, side + 5)
    return [count * config.stride for count in (*(count for count in around if count > 1 and count != side), side)]


def image_sizes(processor: Preprocessor, dataset: Dataset) -> set[tuple[int, int]]:
    """The heights and widths that a preprocessor gives images. Raises ValueError, which names one it cannot take."""
    sizes = set()
    for image in dataset.annotations.imgs.values():
        with naming(dataset.folder / image["file_name"]):
            sizes.add(processor.shapes(image["height"], image["width"])[1])
    return sizes


def for_batches(checkpoint: Checkpoint, dataset: Dataset, side: int) -> Preprocessor:
    """The preprocessor of a checkpoint or, if the model cannot take its images in one batch, one that gives all images
    one size, which is printed: that of the largest image, or squares for a model without a mask of the padding.

    side: of the squares.
    """
    processor, has_mask = checkpoint.processor, checkpoint.model_type == "deformable_detr"
    sizes = image_sizes(processor, dataset)
    height, width = (max(sides) for sides in zip(*sizes, strict=True))
    stride = stride_of(checkpoint.model)
    if len(sizes) == 1 and (has_mask or height % stride == width % stride == 0):
        return processor
    if has_mask:
        print(f"The checkpoint makes images of {len(sizes)} sizes. They are padded to {height} x {width} pixels.")
        return replace(processor, pad_size=(height, width))
    print(
        f"The checkpoint makes images of up to {height} x {width} pixels, which the model cannot take in one batch. "
        f"Their size is {side} x {side} pixels instead; --sizes changes that."
    )
    return processor.for_training(checkpoint.model_type, side)


def check_counts(dataset: Dataset, limit: int | None, queries: int) -> None:
    """Raises ValueError if an image has more objects than a model has queries, each of which can find one."""
    image, count = max(zip(dataset.images, dataset.counts, strict=True), key=lambda one: one[1])
    if min(count, limit or count) > queries:
        name = dataset.annotations.imgs[image]["file_name"]
        raise ValueError(
            f"--objects must be at most {queries}, the queries of the model, for {name} has {count} objects"
        )


def print_small_objects(dataset: Dataset, side: int, keeps_ratio: bool) -> None:
    """Prints how many objects have a side below a pixel when their images are fitted into a square, if any."""
    small = 0
    for image in dataset.images:
        height, width = (dataset.annotations.imgs[image][name] for name in SIDES)
        scale = np.divide(fitted_shape(height, width, (side, side), keeps_ratio), (height, width))[::-1]
        corners = np.array([one["corners"] for one in dataset.objects(image)]).reshape(-1, 4)
        small += ((corners[:, 2:] - corners[:, :2]) * scale < MIN_SIDE).any(1).sum()
    if small:
        print(f"{small} objects have a side below a pixel in images of {side} pixels, and are not trained on there.")


if __name__ == "__main__":
    main()
