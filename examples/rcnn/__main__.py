"""Detect objects with mmdet's Faster R-CNN or Mask R-CNN with deformable convolutions, in Flax.

python -m examples.rcnn mask_rcnn_r50_fpn_mdconv_c3-c5_1x_coco.pth photo.jpg
python -m examples.rcnn out/rcnn/model.npz photo.jpg --names annotations.json --threshold 0.3 --out found.png

The last is a model that `python -m examples.rcnn.train` has written.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from PIL import Image

from examples.library import objects
from examples.library.coco import rgb

from .detector import detect
from .images import SCALE
from .weights import load


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    checkpoint_help = "a .pth (read by torch), .safetensors or .npz file"
    parser = objects.make_parser("python -m examples.rcnn", __doc__, checkpoint_help)
    parser.add_argument("--names", type=Path, help="a JSON file of COCO's format, for the names of the classes")
    size_help = "longer and shorter side that the image is resized to (%(default)s)"
    parser.add_argument("--scale", type=int, nargs=2, default=SCALE, help=size_help)
    options = parser.parse_args(arguments)

    if min(options.scale) < 1:
        parser.error("--scale must be positive")
    try:
        model, variables = load(options.checkpoint)
        names = class_names(options.names, model.config.classes)
        image = rgb(Image.open(options.image))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    found = jax.device_get(detect(model, variables, np.asarray(image)[None], tuple(options.scale)))
    kept = found.scores[0] >= options.threshold
    masks = None if found.masks is None else found.masks[0][kept]
    detected = objects.Objects(found.scores[0][kept], found.labels[0][kept], found.boxes[0][kept], masks)
    objects.report(options.out, image, detected, names)


def class_names(annotations: Path | None, count: int) -> list[str]:
    """The names of the categories in annotations, in the order of their ids; without a file, numbers."""
    if annotations is None:
        return [f"class {index}" for index in range(count)]
    content = json.loads(annotations.read_text())
    if not isinstance(content, dict) or "categories" not in content:
        raise ValueError(f"{annotations} must have categories, as files of COCO's format do")
    categories = sorted(content["categories"], key=lambda category: category["id"])
    if len(categories) != count:
        raise ValueError(f"{annotations} must have the {count} categories of the checkpoint, got {len(categories)}")
    return [category["name"] for category in categories]


if __name__ == "__main__":
    main()
