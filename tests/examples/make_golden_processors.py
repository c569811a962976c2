"""Writes tests/examples/golden/processors.npz: images and objects by transformers, whose version is in the file.

python -m tests.examples.make_golden_processors
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoImageProcessor, AutoModelForObjectDetection

from examples.detr.images import Preprocessor
from tests.helpers import processors


def processed(processor, height, width):
    try:
        found = processor(processors.image(height, width), return_tensors="np")
    except ValueError:
        return (-1,) * 5
    pixels = found["pixel_values"][0].transpose(1, 2, 0)
    mask = found["pixel_mask"][0] > 0 if "pixel_mask" in found else np.ones(pixels.shape[:2], bool)
    return processors.measured(pixels, mask)


def loaded(settings):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "preprocessor_config.json").write_text(json.dumps(settings))
        return AutoImageProcessor.from_pretrained(folder, backend="pil")


def objects(name, settings):
    folder = processors.CHECKPOINTS / name
    kind = processors.PROCESSORS[name != "deformable_detr"]
    processor = loaded({"image_processor_type": kind} | settings)
    inputs = processor(processors.image(*processors.PHOTO), return_tensors="pt")
    model = AutoModelForObjectDetection.from_pretrained(folder).eval()
    with torch.no_grad():
        outputs = model(**{key: value.float() if key == "pixel_values" else value for key, value in inputs.items()})
    found = processor.post_process_object_detection(outputs, processors.THRESHOLD, [processors.PHOTO])[0]
    return {key: value.numpy() for key, value in found.items()}


def main():
    cases = [
        processed(getattr(transformers, f"{kind}Pil").from_dict(processors.merged(parts)), *size)
        for kind, parts, size in processors.CASES
    ]
    trained, written = [], []
    for model, settings in processors.STARTS:
        made = Preprocessor.from_json(model, settings).for_training(model, processors.SIDE).settings
        written.append(json.dumps(made))
        trained.append([processed(loaded(made), *size) for size in processors.TRAINED_ON])
    keys = sorted(
        {key for kind in processors.PROCESSORS for key in getattr(transformers, kind).valid_kwargs.__annotations__}
    )
    arrays = {"cases": cases, "trained": trained, "written": written, "keys": keys}
    for number, (name, settings) in enumerate(processors.COMMANDS):
        arrays |= {f"{number}/{key}": value for key, value in objects(name, settings).items()}
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}, pillow's backend"
    np.savez_compressed(processors.GOLDEN, made_by=versions, **arrays)


if __name__ == "__main__":
    main()
