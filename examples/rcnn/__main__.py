"""Detect objects with mmdet's Faster R-CNN or Mask R-CNN with deformable convolutions, in Flax.

python -m examples.rcnn mask_rcnn_r50_fpn_mdconv_c3-c5_1x_coco.pth photo.jpg
python -m examples.rcnn out/rcnn/model.npz photo.jpg --threshold 0.3 --out found.png
python -m examples.rcnn out/rcnn/model.npz FOLDER --out found    # all images and videos of a folder
python -m examples.rcnn out/rcnn/model.npz video.mp4 --out found.mp4 --json found.json

model.npz is what `python -m examples.rcnn.train` has written. If a checkpoint does not name its classes, pass
--names annotations.json, a file of what it was trained on.
"""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from examples.library import detecting
from examples.library.annotations import read_names
from examples.library.command_line import COUNT
from examples.library.objects import Objects

from .config import Config
from .detector import detect
from .options import CHECKPOINT_HELP, add_settings, read_checkpoint


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    parser = detecting.make_parser("python -m examples.rcnn", __doc__, CHECKPOINT_HELP)
    names_help = "a JSON file of COCO's format, for the names of classes that the checkpoint does not name"
    parser.add_argument("--names", type=Path, help=names_help)
    size_help = "longer and shorter side that the image is resized to; by default, as the checkpoint says"
    parser.add_argument("--scale", type=COUNT, nargs=2, help=size_help)
    add_settings(parser)
    options = parser.parse_args(arguments)
    scale = tuple(options.scale) if options.scale else None
    with parser.reporting():
        model, variables = read_checkpoint(options)
        if options.threshold < (lowest := model.config.objects.score_threshold):
            print(f"The model finds objects with scores from {lowest} on (--set objects.score_threshold=SCORE).")
        names = class_names(options.names, model.config)

        def find(image):
            found = jax.device_get(detect(model, variables, np.asarray(image)[None], scale))
            masks = None if found.masks is None else found.masks[0]
            return Objects(found.scores[0], found.labels[0], found.boxes[0], masks)

        detecting.run(options, find, names)


def class_names(annotations: Path | None, config: Config) -> Sequence[str]:
    """The names of the categories in annotations, in their order there; without a file, those of the checkpoint, or
    numbers."""
    if annotations is None:
        return config.names or [f"class {index}" for index in range(config.classes)]
    names = read_names(annotations)
    if len(names) != config.classes:
        raise ValueError(f"{annotations} must have the {config.classes} categories of the checkpoint, got {len(names)}")
    other = [pair for pair in zip(names, config.names or names, strict=True) if len({*pair}) > 1]
    if other:
        raise ValueError(
            f"{annotations} must have the classes of the checkpoint in the same order, which has {other[0][1]!r} in "
            f"place of {other[0][0]!r}; without --names, classes have the names in the checkpoint"
        )
    return names


if __name__ == "__main__":
    main()
