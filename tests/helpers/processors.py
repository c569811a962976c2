"""Settings of transformers' image processors, and what is compared of the images that they make."""

import itertools
import json
import pathlib

import numpy as np
from PIL import Image

GOLDEN = pathlib.Path(__file__).parents[1] / "examples/golden/processors.npz"
CHECKPOINTS = pathlib.Path(__file__).parents[1] / "golden/detr_training"

PROCESSORS = ("DeformableDetrImageProcessor", "RTDetrImageProcessor")
IMAGES = ((30, 40), (40, 30), (33, 33), (1, 37), (37, 1), (5, 200), (23, 150))
SIZES, PADS, SCALES, COLOURS, WITHOUT_EFFECT, FINE_TUNED, BYTES = json.loads(
    pathlib.Path(__file__).with_suffix(".json").read_text()
).values()  # the images of fine-tuned models are those of transformers' script, but smaller
FILTERS = tuple({"resample": number} for number in range(6))
CASES = [
    *itertools.product(PROCESSORS, itertools.product(SIZES, PADS, FILTERS), IMAGES),
    *itertools.product(PROCESSORS, itertools.product(SIZES[4:5], PADS[6:7], SCALES, COLOURS), IMAGES[:1]),
    *itertools.product(
        PROCESSORS, [({},), ({"size": None},), ({"size": 20},), (WITHOUT_EFFECT,)], [(30, 40), (3, 500)]
    ),
]
COMMANDS = [  # checkpoints, and settings with which they find objects in a photo
    ("deformable_detr", FINE_TUNED),
    ("deformable_detr", {"size": {"shortest_edge": 64, "longest_edge": 90}, "resample": 3}),
    ("deformable_detr", {"size": [64, 96], "pad_size": 100} | BYTES),
    ("rt_detr_v2", FINE_TUNED),
    ("rt_detr_v2", {"size": {"height": 64, "width": 96}} | BYTES),
]
PHOTO, THRESHOLD = (50, 80), 0.01
# Checkpoints that are trained on: the model, and its settings.
STARTS = list(
    itertools.product(
        ("deformable_detr", "rt_detr_v2"),
        [
            *(size | pad for size in SIZES for pad in PADS[:5] if type(size.get("size")) is not int),
            {"image_processor_type": "DeformableDetrImageProcessor", "size": 20, "resample": 3},
            FINE_TUNED | {"resample": 1} | BYTES,
            {"rescale_factor": 0.01, "do_normalize": None},
        ],
    )
)
SIDE, TRAINED_ON = 64, ((50, 80), (30, 200), (97, 40), (65, 20))


def merged(parts):
    """The settings of a case."""
    return {key: value for part in parts for key, value in part.items()}


def image(height, width):
    """A random image."""
    return Image.fromarray(np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8))


def measured(pixels, mask):
    """The shape of an image and of the part that is no padding, and a sum of its values with random weights."""
    height, width = pixels.shape[:2]
    rows, columns, channels = (np.random.default_rng(seed).normal(size=2000) for seed in range(3))
    total = np.einsum("hwc,h,w,c", np.float64(pixels), rows[:height], columns[:width], channels[:3])
    return height, width, mask.any(1).sum(), mask.any(0).sum(), total
