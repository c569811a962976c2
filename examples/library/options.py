"""The options that commands share which train, and those of all which train on images with annotations."""

import argparse
import importlib.util
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import jax

from . import classes
from .coco import Dataset, read
from .command_line import COUNT, Parser, number
from .files import listed
from .loading import Loading
from .precision import indexed
from .recipe import CHANGEABLE_IF_ASKED, Recipe

# The scores of a data set without images, which are NaN, have the names of all scores.
NO_IMAGES = Dataset(indexed({"images": [], "annotations": [], "categories": []}), Path(), Path(), [], [])


def add_run(add: Any, out: str) -> None:
    """Adds the options of a run; add: `add_argument` of a parser or one of its groups."""
    add("--out", type=Path, default=Path(out), help="folder to write to (%(default)s)")
    add("--tensorboard", action="store_true", help="write losses and scores for TensorBoard, too")
    add("--resume", action="store_true", help="go on from the checkpoints in OUT, if any; --steps may have grown")
    add("--overwrite", action="store_true", help="delete the checkpoints and results of another run in OUT")


def add_recipe(add: Any, recipes: Mapping[str, Recipe], without: Sequence[str] = ()) -> None:
    """Adds an option for each field of a recipe that has a help text.

    recipes: the defaults, by the type of a model, of which the first is the usual one. without: fields without option.
    """
    for field in fields(Recipe):
        if "help" not in field.metadata or field.name in without:
            continue
        models = defaultdict(list)
        for model, recipe in recipes.items():
            models[getattr(recipe, field.name)].append(model)
        value, *others = models
        texts = [_text(value), *(f"{_text(other)} for {' and '.join(models[other])}" for other in others)]
        is_tuple, kind = isinstance(value, tuple), int if isinstance(value, int) else float
        add(
            f"--{field.name.replace('_', '-')}",
            type=number(kind, *field.metadata["range"]),
            nargs="*" if is_tuple else None,
            default=value if field.name == "steps" else None,  # the others have another one for each type of model
            help=f"{field.metadata['help']} ({', '.join(texts)})",
        )


def _text(value):
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def chosen_recipe(options: argparse.Namespace, default: Recipe) -> Recipe:
    """A recipe with the numbers that are given. By default, at most a fifth of the steps are warm-up."""
    given = {field.name: getattr(options, field.name, None) for field in fields(Recipe)}
    given = {name: tuple(one) if isinstance(one, list) else one for name, one in given.items() if one is not None}
    recipe = replace(default, **given)
    return replace(recipe, warmup=given.get("warmup", min(recipe.warmup, recipe.steps // 5)))


def for_loading(options: argparse.Namespace, recipe: Recipe) -> dict[str, Any]:
    """The fields of `Loading`, which the options of a `TrainingParser` and a recipe decide."""
    found = vars(options) | vars(recipe)
    return {field.name: found[field.name] for field in fields(Loading)}


def existing(options: argparse.Namespace) -> Literal["refuse", "resume", "overwrite"]:
    """What happens to an earlier run, as of `loop.Options`."""
    return "resume" if options.resume else "overwrite" if options.overwrite else "refuse"


def check_run(parser: Parser, options: argparse.Namespace) -> None:
    """Ends the command with an error if options of `add_run` and `add_recipe` do not fit together.

    Sets `existing` and `changeable`, as of `loop.Options`.
    """
    if options.out.exists() and not options.out.is_dir():
        parser.error(f"--out must be a folder, got the file {options.out}")
    if options.resume and options.overwrite:
        parser.error("only one of --resume and --overwrite must be given")
    options.existing = existing(options)
    options.changeable = [name for name in CHANGEABLE_IF_ASKED if getattr(options, name, None) is not None]
    if options.warmup and options.warmup > options.steps:
        parser.error(f"--warmup must be at most --steps, got {options.warmup} and {options.steps}")
    if options.tensorboard and not importlib.util.find_spec("tensorboardX"):
        parser.error("--tensorboard needs tensorboardX: pip install tensorboardX")


class TrainingParser(Parser):
    """The parser of a command that trains on images with annotations. `parse_args` also checks what it has parsed.

    checkpoint: describes that argument; recipes: as of `add_recipe`; out: the default. `add_for_training` is
    `add_argument` for what --evaluate-only does not use.
    """

    def __init__(self, program: str, doc: str, checkpoint: str, recipes: Mapping[str, Recipe], out: str):
        super().__init__(program, doc, distributed=True)
        self._group, self._of_training = self.add_argument_group("training, which --evaluate-only does not use"), set()
        add, train = self.add_argument, self.add_for_training
        annotations_help = "a JSON file of COCO's format, a data.yaml of YOLO, or a folder of Pascal VOC"
        add("annotations", type=Path, help=annotations_help)
        images_help = "the folder of its images, by default that of the JSON file; "
        images_help += "of YOLO and VOC, which part is trained on, by default train"
        add("images", type=Path, nargs="?", help=images_help)
        add("--checkpoint", type=Path, help=checkpoint)
        validation_help = "what to compute AP on, named in the same way; the default part is val"
        add("--validation", type=Path, nargs="+", metavar=("ANNOTATIONS", "IMAGES"), help=validation_help)
        add("--evaluate-only", action="store_true", help="train nothing, and compute the AP of the checkpoint")
        add("--dtype", choices=("float32", "bfloat16"), default="float32", help="in which layers compute (%(default)s)")
        add("--devices", type=COUNT, help="how many devices of each process share a batch; by default all")
        add("--workers", type=COUNT, default=2, help="threads, or processes, that load images (%(default)s)")
        add_recipe(add, recipes, [field.name for field in fields(Recipe) if field.name != "batch_size"])
        train("--best", metavar="SCORE", help="the score that decides which weights are the best; by default AP")
        patience_help = "stop when it has not risen for N evaluations; by default, never"
        train("--patience", type=COUNT, metavar="N", help=patience_help)
        train("--objects", type=COUNT, help="how many objects of an image are trained on at most; by default all")
        background_help = "train on images without annotations, too, against false detections"
        train("--background", action="store_true", help=background_help)
        mirror_help = "mirror no image, for objects that have a left and a right side"
        train("--no-mirror", dest="mirrors", action="store_false", help=mirror_help)
        train("--processes", action="store_true", help="load training images by processes, where threads are too slow")
        damaged_help = "name images that are damaged, and train on the others"
        train("--skip-damaged", dest="skips_damaged", action="store_true", help=damaged_help)
        add_run(train, out)
        add_recipe(train, recipes, ["batch_size"])

    def add_for_training(self, *names: str, **settings: Any) -> None:
        """Adds an option that --evaluate-only does not use."""
        self._of_training.update(names)
        self._group.add_argument(*names, **settings)

    def parse_args(self, args: Sequence[str] | None = None) -> argparse.Namespace:
        """As of the base class. Ends the command with an error if options do not fit together."""
        options = super().parse_args(args)
        check_run(self, options)
        if options.validation and len(options.validation) > 2:
            self.error(f"--validation takes ANNOTATIONS and IMAGES, got {' '.join(map(str, options.validation))}")
        if options.devices and options.devices > jax.local_device_count():
            self.error(f"--devices must be at most the {jax.local_device_count()} of a process, got {options.devices}")
        if options.evaluate_only and not (options.checkpoint and options.validation):
            self.error("--evaluate-only needs --checkpoint and --validation")
        if options.evaluate_only and (ignored := sorted(self._of_training & self.given)):
            self.error(f"--evaluate-only does not use {', '.join(ignored)}")
        if (options.best or options.patience or options.evaluate_every) and not options.validation:
            self.error("--best, --patience and --evaluate-every need --validation")
        return options


def choose_best(parser: Parser, options: argparse.Namespace, scores: Sequence[str]) -> None:
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
    if sided and options.mirrors:
        print(f"Mirrored objects keep these classes, which name a side (--no-mirror mirrors none): {listed(sided)}")
    most = options.objects or max(counts)
    beyond = [count - most for count in counts if count > most]
    if beyond:
        print(f"{sum(beyond)} objects of {len(beyond)} images are beyond --objects, and are not trained on.")
