"""From an image file to the input of a model, and from its outputs to objects."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from examples.library.objects import Objects

from .decoder import Outputs

# What a preprocessor_config.json need not say.
DEFAULTS = {
    "do_resize": True,
    "resample": Image.Resampling.BILINEAR,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "image_mean": (0.485, 0.456, 0.406),
    "image_std": (0.229, 0.224, 0.225),
}
DEFAULTS_BY_MODEL = {
    "deformable_detr": {"do_normalize": True, "size": {"shortest_edge": 800, "longest_edge": 1333}},
    "rt_detr": {"do_normalize": False, "size": {"height": 640, "width": 640}},
    "rt_detr_v2": {"do_normalize": False, "size": {"height": 640, "width": 640}},
    "d_fine": {"do_normalize": False, "size": {"height": 640, "width": 640}},
}


def preprocess(image: Image.Image, model_type: str, processor: Mapping[str, Any]) -> np.ndarray:
    """An RGB image as the model expects it: float32 [1, height, width, 3]."""
    options = DEFAULTS | DEFAULTS_BY_MODEL[model_type] | processor
    if options["do_resize"]:
        height, width = resized(image.height, image.width, options["size"], options.get("max_size"))
        image = image.resize((width, height), options["resample"])
    pixels = np.asarray(image, np.float32)
    if options["do_rescale"]:
        pixels = pixels * np.float32(options["rescale_factor"])
    if options["do_normalize"]:
        pixels = (pixels - np.float32(options["image_mean"])) / np.float32(options["image_std"])
    return pixels[None]


def normalisation(model_type: str, processor: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and the deviation of images that a model expects, of values from 0 to 1."""
    options = DEFAULTS | DEFAULTS_BY_MODEL[model_type] | processor
    if not options["do_normalize"]:
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return tuple(options["image_mean"]), tuple(options["image_std"])


def with_size(model_type: str, processor: Mapping[str, Any], side: int) -> dict[str, Any]:
    """A preprocessor_config.json for images that fit into a square of this side."""
    options = DEFAULTS | DEFAULTS_BY_MODEL[model_type] | processor
    keeps_ratio = model_type == "deformable_detr"
    kind = "DeformableDetrImageProcessor" if keeps_ratio else "RTDetrImageProcessor"
    edges = ("shortest_edge", "longest_edge") if keeps_ratio else ("height", "width")
    scaling = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255}  # as in training
    return options | scaling | {"image_processor_type": kind, "size": dict.fromkeys(edges, side)}


def resized(height: int, width: int, size: int | Mapping[str, int], max_size: int | None = None) -> tuple[int, int]:
    """The height and width that a processor's `size` asks for; if it is one number, it is the shorter side.

    >>> resized(480, 640, {"height": 640, "width": 640})
    (640, 640)
    >>> resized(480, 640, {"shortest_edge": 800, "longest_edge": 1333})
    (800, 1066)
    >>> resized(640, 480, {"shortest_edge": 800, "longest_edge": 1333})
    (1066, 800)
    >>> resized(500, 1010, {"shortest_edge": 800, "longest_edge": 1333})
    (660, 1333)
    >>> resized(481, 1334, {"shortest_edge": 800, "longest_edge": 1333})
    (481, 1334)
    >>> resized(400, 1000, 800, max_size=1333), resized(400, 1000, 800)  # as in old files
    ((533, 1333), (533, 1333))
    """
    if isinstance(size, int):
        size = {"shortest_edge": size, "longest_edge": max_size or 1333}
    if "height" in size:
        return size["height"], size["width"]
    shorter, longer = sorted((height, width))
    edge = min(size["shortest_edge"], size["longest_edge"] * shorter / longer)
    short, long = round(edge), int(edge * longer / shorter)
    if short == shorter:  # the image stays, even if its longer side is a pixel too long
        return height, width
    return (short, long) if height <= width else (long, short)


def find_objects(outputs: Outputs, height: int, width: int, threshold: float) -> Objects:
    """The objects in the first image of a batch with scores above the threshold.

    A query may find several classes. height, width: of the image, in the pixels that boxes are to have.
    """
    scores = 1 / (1 + np.exp(-np.asarray(outputs.logits[0], np.float64)))
    queries, labels = np.nonzero(scores > threshold)
    order = np.argsort(-scores[queries, labels], kind="stable")
    queries, labels = queries[order], labels[order]
    centres, sizes = np.split(np.asarray(outputs.boxes[0])[queries], 2, -1)
    corners = np.concatenate([centres - sizes / 2, centres + sizes / 2], -1) * (width, height, width, height)
    return Objects(scores[queries, labels], labels, corners)
