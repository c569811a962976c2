"""The options that all commands share which train on images with annotations."""

import argparse
import importlib.util
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax

from . import classes
from .coco import Dataset, read
from .command_line import Parser
from .files import listed
from .precision import indexed

POSITIVE = {"steps", "objects", "workers", "devices", "batch_size", "accumulate", "regions", "patience", "count"}
POSITIVE |= {"checkpoint_every", "evaluate_every"}
# What --evaluate-only uses.
EVALUATION = {"annotations", "images", "checkpoint", "validation", "evaluate_only", "dtype", "workers", "batch_size"}
EVALUATION |= {"sizes", "size", "boxes_only", "config", "set", "trust", "no_cache", "devices", "distributed"}
RANGES = {  # of other numbers, which otherwise must not be negative
    "decay_from": (0, 1),
    "clip_norm": (1e-9, math.inf),
    "ema": (0, 1 - 1e-9),
    "min_scale": (0.1, 1),
    "seed": (0, 2**32 - 1),
}
# The scores of a data set without images, which are NaN, have the names of all scores.
NO_IMAGES = Dataset(indexed({"images": [], "annotations": [], "categories": []}), Path(), Path(), [], [])


def training_parser(program: str, doc: str, checkpoint: str, *, steps: int, out: str) -> Parser:
    """The parser of such a command; checkpoint: describes that argument; steps, out: defaults."""
    parser = Parser(program, doc, distributed=True)
    add = parser.add_argument
    add("annotations", type=Path, help="a JSON file of COCO's format, a data.yaml of YOLO, or a folder of Pascal VOC")
    images_help = "the folder of its images, by default that of the JSON file; of YOLO and VOC, which part is trained "
    add("images", type=Path, nargs="?", help=f"{images_help} on, by default train")
    add("--checkpoint", type=Path, help=checkpoint)
    validation_help = "what to compute AP on, named in the same way; the default part is val"
    add("--validation", type=Path, nargs="+", metavar=("ANNOTATIONS", "IMAGES"), help=validation_help)
    add("--best", metavar="SCORE", help="the score that decides which weights are kept as the best; by default AP")
    add("--patience", type=int, metavar="N", help="stop when it has not risen for N evaluations; by default, never")
    add("--evaluate-only", action="store_true", help="train nothing, and compute the AP of the checkpoint")
    add("--objects", type=int, help="how many objects of an image are trained on at most; by default all")
    add("--background", action="store_true", help="train on images without annotations, too, against false detections")
    add("--no-mirror", action="store_true", help="mirror no image, for objects that have a left and a right side")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="in which layers compute (%(default)s)")
    add("--devices", type=int, help="how many devices of each process share a batch; by default all")
    add("--workers", type=int, default=2, help="threads, or processes, that load images (%(default)s)")
    add("--processes", action="store_true", help="load training images by processes, where threads are too slow")
    add("--skip-damaged", action="store_true", help="name images that are damaged, and train on the others")
    add("--out", type=Path, default=Path(out), help="folder to write to (%(default)s)")
    add("--tensorboard", action="store_true", help="write losses and scores for TensorBoard, too")
    add("--resume", action="store_true", help="go on from the checkpoints in OUT, if any; --steps may have grown")
    add("--overwrite", action="store_true", help="delete the checkpoints and results of another run in OUT")
    add("--steps", type=int, default=steps, help="steps of the optimiser (%(default)s)")
    return parser


def add_recipe(
    parser: argparse.ArgumentParser,
    recipe: type,
    helps: Mapping[str, str],
    variants: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """Adds an option for each field of a recipe in `helps`; variants: other defaults, by the type of a model."""
    for name, what in helps.items():
        value, models = getattr(recipe, name), defaultdict(list)
        for model, defaults in variants.items():
            models[defaults.get(name, value)].append(model)
        others = [f"{other} for {' and '.join(models[other])}" for other in models if other != value]
        about = f"{what} ({', '.join([str(value), *others])})"
        parser.add_argument(f"--{name.replace('_', '-')}", type=int if isinstance(value, int) else float, help=about)


def checked_recipe(
    parser: argparse.ArgumentParser, options: argparse.Namespace, recipe: Mapping[str, str]
) -> dict[str, Any]:
    """The fields of a recipe that are given. Ends the command with an error if a number, --out or what is to become of
    another run in it is not valid.
    """
    given = {name: value for name, value in vars(options).items() if value is not None}
    for name, number in given.items():
        option, (low, high) = f"--{name.replace('_', '-')}", RANGES.get(name, (0, math.inf))
        if name in POSITIVE and number < 1:
            parser.error(f"{option} must be positive, got {number}")
        if type(number) in (int, float) and not (math.isfinite(number) and low <= number <= high):
            parser.error(f"{option} must be between {low} and {high}, got {number}")
    if options.out.exists() and not options.out.is_dir():
        parser.error(f"--out must be a folder, got the file {options.out}")
    if options.resume and options.overwrite:
        parser.error("only one of --resume and --overwrite must be given")
    return {name: given[name] for name in recipe if name in given}


def checked(parser: argparse.ArgumentParser, options: argparse.Namespace, recipe: Mapping[str, str]) -> dict[str, Any]:
    """As `checked_recipe`, for the options of `training_parser`, which must also fit together."""
    given = checked_recipe(parser, options, recipe)
    if options.validation and len(options.validation) > 2:
        parser.error(f"--validation takes ANNOTATIONS and IMAGES, got {' '.join(map(str, options.validation))}")
    if given.get("warmup", 0) > options.steps:
        parser.error(f"--warmup must be at most --steps, got {options.warmup} and {options.steps}")
    if options.devices and options.devices > jax.local_device_count():
        parser.error(f"--devices must be at most the {jax.local_device_count()} of a process, got {options.devices}")
    if options.tensorboard and not importlib.util.find_spec("tensorboardX"):
        parser.error("--tensorboard needs tensorboardX: pip install tensorboardX")
    if options.evaluate_only and not (options.checkpoint and options.validation):
        parser.error("--evaluate-only needs --checkpoint and --validation")
    ignored = [name for name, value in vars(options).items() if value != parser.get_default(name)]
    ignored = [f"--{name.replace('_', '-')}" for name in ignored if name not in EVALUATION]
    if options.evaluate_only and ignored:
        parser.error(f"--evaluate-only does not use {', '.join(ignored)}")
    if (options.best or options.patience or given.get("evaluate_every")) and not options.validation:
        parser.error("--best, --patience and --evaluate-every need --validation")
    return given


def choose_best(parser: argparse.ArgumentParser, options: argparse.Namespace, scores: Sequence[str]) -> None:
    """Sets `best` to the first of the scores, if it is not given. Ends the command with an error if it is none."""
    options.best = options.best or scores[0]
    if options.best not in scores:
        parser.error(f"--best must be one of {', '.join(scores)}, got {options.best}")


def read_data(options: argparse.Namespace, masks: bool = False) -> tuple[Dataset, Dataset | None]:
    """The data to train on and, if given, those to validate with, whose classes are those of the others; as by `read`.

    Prints which images and objects are not trained on. Raises ValueError if there are no objects to train on, or to
    find in the validation images.
    """
    dataset = read(options.annotations, options.images, masks, "train")
    validation = None
    if options.validation:
        path, images = (*options.validation, None)[:2]
        validation = read(path, images, masks, "val")
    if validation and not options.evaluate_only:
        validation = validation.with_classes(dataset.names)
    used = [data for data in (not options.evaluate_only and dataset, validation) if data]
    only_crowds = [data.path for data in used if all(one["iscrowd"] for one in data.annotations.anns.values())]
    if masks and only_crowds:
        raise ValueError(f"no object in {only_crowds[0]} has a mask, apart from crowds: pass --boxes-only")
    if not (options.evaluate_only or dataset.images_with_objects):
        raise ValueError(f"{dataset.path} must have objects to train on")
    if only_crowds:
        raise ValueError(f"{only_crowds[0]} must have objects other than crowds for the average precision")
    if validation and (background := len(validation.background_images)):
        print(f"{background} validation images have no annotations: whatever is found there counts as wrong.")
    if not options.evaluate_only:
        _print_what_is_left_out(dataset, options)
        if validation and (count := len(dataset.files & (files := validation.files))):
            print(f"{count} of the {len(files)} validation images are trained on, too.")
    return dataset, validation


def _print_what_is_left_out(dataset, options):
    objects = [dataset.objects(image) for image in dataset.images]
    counts, background = [*map(len, objects)], len(dataset.background_images)
    if background and not options.background:
        print(f"{background} images without annotations are not trained on. --background trains on them, too.")
    if without_objects := counts.count(0) - background:
        print(f"{without_objects} images are not trained on, because their objects are not.")
    used = {one["category_id"] for of_image in objects for one in of_image}
    unused = [name for name, category in zip(dataset.names, dataset.categories, strict=True) if category not in used]
    if unused:
        print(f"Classes without an object to train on: {listed(unused)}")
    kinds = Counter(map(classes.kind, dataset.names))
    if alike := [name for name in dataset.names if kinds[classes.kind(name)] > 1]:
        print(f"Classes of their own, although their names mean the same: {listed(alike)}")
    sides, words = {"left", "right"}, re.compile("[A-Z]?[a-z]+|[A-Z]+")
    sided = [name for name in dataset.names if sides & {*map(str.lower, words.findall(name))}]
    if sided and not options.no_mirror:
        print(f"Mirrored objects keep these classes, which name a side (--no-mirror mirrors none): {listed(sided)}")
    most = options.objects or max(counts)
    beyond = [count - most for count in counts if count > most]
    if beyond:
        print(f"{sum(beyond)} objects of {len(beyond)} images are beyond --objects, and are not trained on.")
