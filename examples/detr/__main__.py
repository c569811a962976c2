"""Detect objects with a Deformable DETR, RT-DETR or RT-DETRv2 of Hugging Face, in Flax.

python -m examples.detr CHECKPOINT photo.jpg
python -m examples.detr CHECKPOINT photo.jpg --threshold 0.3 --out found.png

CHECKPOINT is a folder with config.json and model.safetensors, such as a download of SenseTime/deformable-detr,
SenseTime/deformable-detr-with-box-refine-two-stage or PekingU/rtdetr_v2_r18vd.
"""

from collections.abc import Sequence

import jax
from PIL import Image

from examples.library.objects import make_parser, report

from .images import find_objects, preprocess
from .weights import load


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    checkpoint_help = "a folder with config.json and model.safetensors"
    options = make_parser("python -m examples.detr", __doc__, checkpoint_help).parse_args(arguments)

    checkpoint = load(options.checkpoint)
    image = Image.open(options.image).convert("RGB")
    pixels = preprocess(image, checkpoint.model_type, checkpoint.processor)
    outputs = jax.jit(checkpoint.model.apply)(checkpoint.variables, pixels)
    objects = find_objects(outputs, image.height, image.width, options.threshold)
    report(options.out, image, objects, checkpoint.labels)


if __name__ == "__main__":
    main()
