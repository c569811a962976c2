"""Write the scenes of digits as images with annotations in the format of COCO, to try `examples.rcnn.train` on them.

python -m examples.rcnn.digits out/digits --train 400 --validation 80
"""

import json
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from examples.library import precision
from examples.library.command_line import Parser
from examples.rfcn import evaluate, scenes

from .coco import encoded

SEEDS = {"train": 0, "validation": evaluate.VALIDATION_SEED}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; by default, with the arguments of the process."""
    parser = Parser("python -m examples.rcnn.digits", __doc__, compiles=False)
    parser.add_argument("out", type=Path, help="the folder to write to")
    parser.add_argument("--train", type=int, default=400, help="training images (%(default)s)")
    parser.add_argument("--validation", type=int, default=80, help="validation images (%(default)s)")
    parser.add_argument("--size", type=int, default=scenes.IMAGE_SIZE, help="both sides of the images (%(default)s)")
    options = parser.parse_args(arguments)
    for path in (options.out / name for split in SEEDS for name in (split, f"{split}.json")):
        if path.exists():
            parser.error(f"{options.out} must have no data set yet, but has {path.name}")
    for split in SEEDS:
        write(options.out, split, getattr(options, split), options.size)
    print(f"{options.out} has {options.train} training and {options.validation} validation images.")


def write(folder: Path, split: scenes.Split, count: int, size: int) -> None:
    """Writes the first scenes of a split to a folder of its name, and their annotations to a JSON file beside it."""
    (folder / split).mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for index in range(count):
        scene = scenes.make_scene(split, SEEDS[split], index, size)
        masks = scenes.make_masks(split, SEEDS[split], index, size)
        name = f"{index:06}.png"
        Image.fromarray(scene.images).save(folder / split / name)
        images.append({"id": index + 1, "file_name": name, "height": size, "width": size})
        for box, label, mask in zip(scene.boxes[: len(masks)], scene.labels, masks, strict=False):
            annotation = {"image_id": index + 1, "category_id": int(label) + 1, "segmentation": encoded(mask)}
            annotations.append(annotation | {"bbox": precision.corners_to_sides(box)})
    categories = [{"id": index, "name": name} for index, name in enumerate(scenes.CLASSES, 1)]
    content = {"images": images, "annotations": precision.with_areas(annotations, "segm"), "categories": categories}
    (folder / f"{split}.json").write_text(json.dumps(content))


if __name__ == "__main__":
    main()
