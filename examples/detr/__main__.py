"""Detect objects with a Deformable DETR, RT-DETR, RT-DETRv2, D-FINE, LW-DETR or RF-DETR, in Flax.

python -m examples.detr CHECKPOINT photo.jpg
python -m examples.detr CHECKPOINT photo.jpg --threshold 0.3 --out found.png
python -m examples.detr CHECKPOINT FOLDER --out found    # all images and videos of a folder
python -m examples.detr CHECKPOINT video.mp4 --out found.mp4 --json found.json

CHECKPOINT is a folder with config.json and model.safetensors, such as a download of SenseTime/deformable-detr,
PekingU/rtdetr_v2_r18vd or ustc-community/dfine-small-coco, or what `python -m examples.detr.train` has written.
"""

from collections.abc import Sequence

import jax
import numpy as np

from examples.library.detecting import make_parser, run
from examples.library.objects import Objects

from .evaluate import Detector, find
from .weights import load


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    checkpoint_help = "a folder with config.json and model.safetensors"
    parser = make_parser("python -m examples.detr", __doc__, checkpoint_help)
    options = parser.parse_args(arguments)

    with parser.reporting():
        checkpoint = load(options.checkpoint)
        detector = Detector.of(checkpoint)

        def detect(image):
            found = find(detector, checkpoint.variables, *checkpoint.processor(image))
            scores, labels, boxes = (part[0] for part in jax.device_get(found[:3]))
            return Objects(scores, labels, boxes * np.tile(image.size, 2))

        run(options, detect, checkpoint.labels)


if __name__ == "__main__":
    main()
