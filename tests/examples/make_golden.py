"""Makes the golden files of this folder with transformers, in float64: python -m tests.examples.make_golden."""

import json
import pathlib
import tempfile

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

from tests.helpers import detectors


def main():
    detectors.GOLDEN.mkdir(exist_ok=True)
    for name, config in detectors.CONFIGS.items():
        shapes = names_and_shapes(config)
        logits, boxes = run(config, shapes)
        made_by = f"transformers {transformers.__version__}, torch {torch.__version__}"
        arrays = {"logits": logits, "boxes": boxes, "shapes": json.dumps(shapes), "made_by": made_by}
        np.savez_compressed(detectors.GOLDEN / f"{name}.npz", **arrays)
        print(name, len(shapes), logits.shape, logits.std(), boxes.std((0, 1)))


def names_and_shapes(config):
    """What a checkpoint of the model contains. In old ones, as those on the hub, each layer has a head of its own."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(config))
        transformers.AutoModelForObjectDetection.from_config(
            transformers.AutoConfig.from_pretrained(folder)
        ).save_pretrained(folder)
        arrays = load_file(pathlib.Path(folder, "model.safetensors"))
    shapes = {key: list(array.shape) for key, array in arrays.items()}
    if "class_embed.0.weight" in shapes:
        for part in ("weight", "bias"):
            shapes[f"class_embed.1.{part}"] = shapes[f"class_embed.0.{part}"]
    return shapes


def run(config, shapes):
    """The logits and boxes of the model with `detectors.state(shapes)`, in float64."""
    with tempfile.TemporaryDirectory() as folder:
        detectors.write(pathlib.Path(folder), config, shapes)
        model = transformers.AutoModelForObjectDetection.from_pretrained(folder).double().eval()
    pixels, mask = detectors.images(config)
    with torch.no_grad():
        outputs = model(torch.from_numpy(pixels.transpose(0, 3, 1, 2)).double(), torch.from_numpy(mask))
    return outputs.logits.numpy(), outputs.pred_boxes.numpy()


if __name__ == "__main__":
    main()
