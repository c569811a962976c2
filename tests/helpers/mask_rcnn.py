"""Random images, objects and weights for Mask R-CNN, and its golden file."""

import json
import pathlib

import numpy as np

from tests.helpers import checkpoints

GOLDEN = pathlib.Path(__file__).parents[1] / "examples/golden/mask_rcnn.npz"
VARIANT = GOLDEN.with_name("mask_rcnn_variant.npz")  # with other settings

# The images are two thirds of the size that they had before they were resized.
HEIGHT, WIDTH = 90, 124
ORIGINAL = 135, 186
# Some layers are scaled such that scores and boxes are spread as in a trained model.
SCALES = {"neck.lateral_convs": 0.1, "rpn_head.rpn_reg": 0.2, "bbox_head.fc_cls": 0.8, "bbox_head.fc_reg": 0.3}


def images(height=HEIGHT, width=WIDTH, batch=2):
    """Images [batch, height, width, 3] of coloured rectangles."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 255, (batch, height, width, 3))
    for image in pixels:
        image //= 8
        for _ in range(12):
            y, x = (np.sort(random.integers(0, extent, 2)) for extent in (height, width))
            image[y[0] : y[1], x[0] : x[1]] += random.integers(0, 200, 3)
    return pixels.clip(0, 255).astype(np.uint8)


def truth():
    """Objects of both images: boxes [2, 4, 4], labels [2, 4], -1 for padding, and masks [2, 4, HEIGHT, WIDTH]."""
    boxes = [
        [[8, 10, 60, 70], [50, 20, 120, 64], [70.5, 60.25, 90, 88], [30, 30, 54, 58]],
        [[2, 3, 118, 86], [60, 40, 90, 80], [0, 0, 0, 0], [0, 0, 0, 0]],
    ]
    labels = [[3, 17, 42, 3], [79, 0, -1, -1]]
    boxes, labels = np.array(boxes, np.float32), np.array(labels, np.int32)
    y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    x0, y0, x1, y1 = np.moveaxis(boxes, -1, 0)[..., None, None]
    radius = ((x - (x0 + x1) / 2) / (x1 - x0 + 1e-6)) ** 2 + ((y - (y0 + y1) / 2) / (y1 - y0 + 1e-6)) ** 2
    return boxes, labels, (radius < 0.25).astype(np.uint8)


def crowd():
    """Objects that overlap each other [6, 4], of which the last two are equal, and random boxes near them [300, 4]."""
    random = np.random.default_rng(1)
    centres, sides = random.uniform(40, 60, (6, 2)), random.uniform(20, 50, (6, 2))
    objects = np.concatenate([centres - sides / 2, centres + sides / 2], 1).astype(np.float32).round()
    objects[5] = objects[4]
    boxes = objects[random.integers(0, 6, 300)] + random.normal(0, 8, (300, 4))
    return objects, np.concatenate([boxes[:, :2], np.maximum(boxes[:, 2:], boxes[:, :2] + 1)], 1).astype(np.float32)


def state(shapes):
    """A random checkpoint of these names and shapes."""
    arrays = checkpoints.fill(shapes)
    for name in arrays:
        for layer, scale in SCALES.items():
            if layer in name and name.endswith("weight"):
                arrays[name] = arrays[name] * np.float32(scale)
    return arrays


def read(path=GOLDEN):
    """(shapes, arrays) of a golden file."""
    with np.load(path) as golden:
        arrays = dict(golden)
    return json.loads(str(arrays.pop("shapes"))), arrays
