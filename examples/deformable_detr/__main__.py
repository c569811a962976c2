"""Detect objects with a Deformable DETR, RT-DETR or RT-DETRv2 of Hugging Face, in Flax.

python -m examples.deformable_detr CHECKPOINT photo.jpg
python -m examples.deformable_detr CHECKPOINT photo.jpg --threshold 0.3 --out found.png

CHECKPOINT is a folder with config.json and model.safetensors, such as a download of SenseTime/deformable-detr,
SenseTime/deformable-detr-with-box-refine-two-stage or PekingU/rtdetr_v2_r18vd.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import jax
from PIL import Image

from .images import find_objects, preprocess
from .pictures import draw_objects
from .weights import load


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.deformable_detr",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", type=Path, help="a folder with config.json and model.safetensors")
    parser.add_argument("image")
    parser.add_argument("--threshold", type=float, default=0.5, help="the lowest score of an object (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("detections.png"), help="the picture (%(default)s)")
    options = parser.parse_args(arguments)

    checkpoint = load(options.checkpoint)
    image = Image.open(options.image).convert("RGB")
    pixels = preprocess(image, checkpoint.model_type, checkpoint.processor)
    outputs = jax.jit(checkpoint.model.apply)(checkpoint.variables, pixels)
    objects = find_objects(outputs, image.height, image.width, options.threshold)
    for score, label, (x0, y0, x1, y1) in zip(*objects, strict=True):
        print(f"{checkpoint.labels[label]:20} {score:.3f}  from ({x0:.1f}, {y0:.1f}) to ({x1:.1f}, {y1:.1f})")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    draw_objects(options.out, image, objects, checkpoint.labels)
    print(f"{len(objects.scores)} objects are in {options.out}.")


if __name__ == "__main__":
    main()
