"""Detect objects with a Deformable DETR, RT-DETR, RT-DETRv2 or D-FINE of Hugging Face, in Flax.

python -m examples.detr CHECKPOINT photo.jpg
python -m examples.detr CHECKPOINT photo.jpg --threshold 0.3 --out found.png

CHECKPOINT is a folder with config.json and model.safetensors, such as a download of SenseTime/deformable-detr,
PekingU/rtdetr_v2_r18vd or ustc-community/dfine-small-coco, or what `python -m examples.detr.train` has written.
"""

from collections.abc import Sequence

import jax
from PIL import Image

from examples.library.coco import rgb
from examples.library.objects import make_parser, report

from .images import find_objects, preprocess
from .weights import load


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    checkpoint_help = "a folder with config.json and model.safetensors"
    parser = make_parser("python -m examples.detr", __doc__, checkpoint_help)
    options = parser.parse_args(arguments)

    try:
        checkpoint = load(options.checkpoint)
        image = rgb(Image.open(options.image))
        pixels = preprocess(image, checkpoint.model_type, checkpoint.processor)
        outputs = jax.jit(checkpoint.model.apply)(checkpoint.variables, pixels)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    objects = find_objects(outputs, image.height, image.width, options.threshold)
    report(options.out, image, objects, checkpoint.labels)


if __name__ == "__main__":
    main()
