"""The options that all commands share which train on images with annotations in the format of COCO."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from .coco import Dataset, check_validation, read


def training_parser(program: str, doc: str, checkpoint: str, objects: int, out: str) -> argparse.ArgumentParser:
    """The parser of such a command; checkpoint: describes that argument; objects, out: defaults."""
    parser = argparse.ArgumentParser(
        prog=program, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("annotations", type=Path, help="a JSON file of COCO's format")
    add("images", type=Path, help="the folder of its images")
    add("--checkpoint", type=Path, help=checkpoint)
    add("--validation", type=Path, nargs=2, metavar=("ANNOTATIONS", "IMAGES"), help="what to compute AP on")
    objects_help = "how many objects of an image are trained on at most (%(default)s)"
    add("--objects", type=int, default=objects, help=objects_help)
    add("--no-mirror", action="store_true", help="mirror no image, for objects that have a left and a right side")
    add("--out", type=Path, default=Path(out), help="folder to write to (%(default)s)")
    add("--resume", action="store_true", help="go on from the checkpoints in OUT; --steps may have grown")
    add("--overwrite", action="store_true", help="delete the checkpoints of another run in OUT")
    return parser


def require_positive(parser: argparse.ArgumentParser, options: argparse.Namespace, names: Iterable[str]) -> None:
    """Ends the command with an error if one of the options is given and is not positive."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be positive, got {value}")
    if options.seed is not None and options.seed < 0:
        parser.error(f"--seed must not be negative, got {options.seed}")


def read_data(options: argparse.Namespace, masks: bool = False) -> tuple[Dataset, Dataset | None]:
    """The data to train on and, if given, those to validate with, which have the same categories; as `read` does."""
    dataset = read(options.annotations, options.images, masks)
    validation = read(*options.validation, masks) if options.validation else None
    if validation:
        check_validation(dataset, validation)
    return dataset, validation
