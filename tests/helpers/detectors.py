"""Small random checkpoints of detectors in the layout of transformers, and their golden outputs."""

import json
import pathlib
import zlib

import numpy as np

from tests.helpers import checkpoints

GOLDEN = pathlib.Path(__file__).parents[1] / "examples/golden"

# The config.json of each, in transformers' format.
CONFIGS = {path.stem: json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*.json"))}


def images(config):
    """Two images [2, height, width, 3], and their mask.

    A Deformable DETR sees a part of the second image. The sizes of its maps do not divide that of the images. RT-DETR's
    images are so wide that anchors on the border are too near to it to be used.
    """
    deformable_detr = config["model_type"] == "deformable_detr"
    image = checkpoints.image(90, 122) if deformable_detr else checkpoints.image(64, 416)
    pixels = np.concatenate([image, image[:, ::-1]])
    mask = np.ones(pixels.shape[:3], np.int32)
    if deformable_detr:
        mask[1, 66:] = mask[1, :, 80:] = 0
    return pixels * mask[..., None].astype(np.float32), mask


def targets(config):
    """The labels and boxes (centre x, centre y, width, height) of the objects of both images, to train on."""
    random, found = np.random.default_rng(1), []
    for count in (3, 1):
        labels = random.integers(0, len(config["id2label"]), count)
        found.append((labels, random.uniform([0.3, 0.3, 0.1, 0.1], [0.7, 0.7, 0.5, 0.5], (count, 4))))
    return found


def draws(config):
    """The random numbers of denoising queries, as many as the config says for each sign."""
    random, shape = np.random.default_rng(2), (2, 2 * config["num_denoising"])
    classes = random.integers(0, len(config["id2label"]), shape)
    sign, part = random.integers(0, 2, (*shape, 4)) > 0, random.uniform(size=(*shape, 4))
    return random.uniform(size=shape), classes, sign, part


def measured(name, array):
    """The norm of an array, and its inner products with two arrays that depend on its name."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return [np.linalg.norm(array), *(np.vdot(array, random.normal(size=array.shape)) for _ in range(2))]


def write(folder, config, shapes):
    """Writes a checkpoint with random arrays of the given shapes."""
    from safetensors.numpy import save_file

    (folder / "config.json").write_text(json.dumps(config))
    save_file(state(config, shapes), folder / "model.safetensors")


def write_golden(folder, name):
    """Writes the checkpoint of a golden file into a new folder, and returns the folder."""
    folder.mkdir()
    write(folder, CONFIGS[name], read(name)[0])
    return folder


def state(config, shapes):
    """Random arrays. Those that follow from the config, such as the quotients 1 / points, are what they must be."""
    arrays = checkpoints.fill(shapes)
    for name, shape in shapes.items():
        if "n_points_scale" in name:
            arrays[name] = np.full(shape, 1 / config["decoder_n_points"], np.float32)
        elif "num_points_scale" in name:
            arrays[name] = np.concatenate(
                [np.full(count, 1 / count, np.float32) for count in config["decoder_n_points"]]
            )
        elif name.endswith(("decoder.up", "decoder.reg_scale")):
            arrays[name] = np.float32([config[name.rpartition(".")[2]]])
    return arrays


def read(name):
    """(shapes, logits, boxes) of a golden file."""
    with np.load(GOLDEN / f"{name}.npz") as golden:
        return json.loads(str(golden["shapes"])), golden["logits"], golden["boxes"]
