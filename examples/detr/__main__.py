"""Detect objects with a Deformable DETR, RT-DETR, RT-DETRv2 or D-FINE of Hugging Face, in Flax.

python -m examples.detr CHECKPOINT photo.jpg
python -m examples.detr CHECKPOINT photo.jpg --threshold 0.3 --out found.png
python -m examples.detr CHECKPOINT FOLDER --out found    # all images and videos of a folder
python -m examples.detr CHECKPOINT video.mp4 --out found.mp4 --json found.json

CHECKPOINT is a folder with config.json and model.safetensors, such as a download of SenseTime/deformable-detr,
PekingU/rtdetr_v2_r18vd or ustc-community/dfine-small-coco, or what `python -m examples.detr.train` has written.
"""

from collections.abc import Sequence

import jax

from examples.library.detecting import make_parser, run
from examples.library.objects import checked_threshold
from examples.library.precision import check_finite

from .evaluate import Detector
from .images import find_objects
from .weights import load


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    checkpoint_help = "a folder with config.json and model.safetensors"
    parser = make_parser("python -m examples.detr", __doc__, checkpoint_help)
    options = parser.parse_args(arguments)
    threshold = checked_threshold(parser, options)

    with parser.reporting():
        checkpoint = load(options.checkpoint)
        detector = Detector.of(checkpoint)

        @jax.jit
        def compute(variables, images, mask):
            return detector.model.apply(variables, *detector.arguments(images, mask))

        def detect(image, name):
            outputs = jax.device_get(compute(checkpoint.variables, *checkpoint.processor(image)))
            check_finite(name, outputs.logits[0].max(-1), outputs.boxes[0])
            return find_objects(outputs, image.height, image.width, threshold, detector.most_objects)

        run(options, detect, checkpoint.labels)


if __name__ == "__main__":
    main()
