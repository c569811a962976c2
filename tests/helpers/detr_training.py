"""The golden files of training detection transformers: what transformers and the authors' codes computed."""

import json
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from examples.detr.config import RTDetrConfig
from examples.detr.denoising import Draws, make_denoising
from examples.detr.matching import Targets

FOLDER = pathlib.Path(__file__).parents[1] / "golden/detr_training"
CASES = (
    "deformable_detr/train",
    "deformable_detr_two_stage/train",
    "rt_detr_v2/train",
    "rt_detr_v2/empty_image",
    "d_fine_simple/train",
)
make_denoising_compiled = jax.jit(make_denoising, static_argnames="config")


class Golden(NamedTuple):
    """A golden file: its arrays by name, its meta data and the config.json of its model."""

    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]
    config: dict[str, Any]

    def starting(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays whose names begin so, without this beginning."""
        return {key.removeprefix(prefix): array for key, array in self.arrays.items() if key.startswith(prefix)}


def read(case: str) -> Golden:
    """The golden file of a model."""
    with np.load(FOLDER / f"{case}.npz") as file:
        arrays = dict(file)
    if case.endswith("empty_image"):  # whose images are those of "train"
        arrays |= {"pixel_values": read(case.replace("empty_image", "train")).arrays["pixel_values"]}
    config = (FOLDER / case).parent / "config.json"
    return Golden(arrays, json.loads(str(arrays.pop("meta"))), json.loads(config.read_text()))


def read_function(name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The golden file of functions, and its meta data."""
    with np.load(FOLDER / "functions" / f"{name}.npz") as file:
        arrays = dict(file)
    return arrays, json.loads(str(arrays.pop("meta")))


def images(golden: Golden) -> np.ndarray:
    return golden.arrays["pixel_values"].transpose(0, 2, 3, 1)


def targets(arrays, padding=0, dtype="float64") -> Targets:
    """The targets of two images, padded to those of the larger one and some more."""
    listed = [(arrays[f"labels/{image}/class_labels"], arrays[f"labels/{image}/boxes"]) for image in (0, 1)]
    count = max(len(labels) for labels, _ in listed) + padding
    boxes, labels = np.full((2, count, 4), 0.5, dtype), np.full((2, count), -1, np.int32)
    for image, (of_image, boxes_of_image) in enumerate(listed):
        labels[image, : len(of_image)], boxes[image, : len(of_image)] = of_image, boxes_of_image
    return Targets(jnp.asarray(boxes), jnp.asarray(labels))


def denoising(arrays, of: Targets, settings: dict[str, Any], classes: int):
    """The denoising queries of the stored draws; there are more of ours, which are hidden."""
    stored = {name: arrays[f"noise/{name}"] for name in Draws._fields}
    count = 2 * max(settings["num_denoising"], of.labels.shape[1])
    missing = count - stored["part"].shape[1]
    padded = {name: np.pad(array, [(0, 0), (0, missing), (0, 0)][: array.ndim]) for name, array in stored.items()}
    padded |= {"sign": padded["sign"] > 0, "part": padded["part"].astype(of.boxes.dtype)}
    names = ("num_denoising", "label_noise_ratio", "box_noise_scale", "num_queries")
    config = RTDetrConfig(num_labels=classes, **{name: settings[name] for name in names})
    return make_denoising_compiled(Draws(**padded), of, config=config)
