"""Detection transformers: examples.detr, transformers and ONNX Runtime with the same random checkpoint."""

import json
import os
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp

from benchmarks.baselines import Call, Unavailable
from benchmarks.baselines.pytorch import load
from benchmarks.measurements.detectors import CLASSES, Detector, Prepared, Program, of_torch, torch_device
from benchmarks.support import memory
from benchmarks.support.machine import cores
from examples.detr import weights
from examples.detr.data import Batch
from examples.detr.images import Preprocessor
from examples.detr.matching import Targets
from examples.detr.recipes import Loss
from examples.library.recipe import Recipe
from examples.library.training import first_state, train_step

SIDES = {"RF-DETR S": 512}  # of images; others have 640
CLIP_NORM, RATE, DECAY = 0.1, 1e-4, 1e-4
# By the name of the model, what differs from transformers' defaults.
CONFIGS = json.loads(Path(__file__).with_suffix(".json").read_text())


def write(config, folder):
    config = weights.with_labels(config, [f"class {number}" for number in range(CLASSES)])
    weights.save(folder, weights.initialise(config, jax.random.key(0)))


def program(folder, batch, dtype):
    checkpoint = weights.load(folder, None if dtype == "float32" else jnp.dtype(dtype))
    loss = Loss.of(checkpoint)
    mask = jnp.ones(batch.pixels.shape[:3], bool)

    def forward(variables, images, mask):
        outputs = checkpoint.model.apply(variables, *loss.detector.arguments(images, mask))
        return outputs.logits, outputs.boxes

    recipe = Recipe(1000, len(mask), learning_rate=RATE, clip_norm=CLIP_NORM, weight_decay=DECAY)
    arrays = checkpoint.variables, batch.pixels, Targets(batch.boxes, batch.labels)
    variables, images, targets = jax.device_put(arrays)
    return Program(
        forward,
        variables,
        (images, mask),
        partial(train_step, loss, recipe),
        first_state(recipe, jax.tree.map(jnp.copy, variables)),
        Batch(images, mask, targets),
    )


def of_transformers(folder, batch, dtype):
    torch, model, pixels = in_torch(folder, batch)
    boxes, labels = (torch.tensor(array, device=pixels.device) for array in (batch.boxes, batch.labels))
    targets = [{"boxes": box, "class_labels": label.long()} for box, label in zip(boxes, labels, strict=True)]
    trained = [one for one in model.parameters() if one.requires_grad]
    optimiser = torch.optim.AdamW(trained, RATE, weight_decay=DECAY)
    return of_torch(
        lambda: model.eval()(pixels).logits,
        lambda: model.train()(pixels, labels=targets).loss,
        trained,
        optimiser,
        CLIP_NORM,
        dtype=dtype,
    )


def in_torch(folder, batch):
    """torch, transformers' model, and the images as its processor makes them."""
    torch, transformers = load(), load("transformers")
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForObjectDetection.from_pretrained(folder).to(torch_device())
    factor, mean, deviation = Preprocessor.from_json(model.config.model_type, {}).normalisation
    pixels = torch.tensor(batch.pixels, device=model.device).float() * factor
    pixels = (pixels - torch.tensor(mean, device=model.device)) / torch.tensor(deviation, device=model.device)
    return torch, model, pixels.permute(0, 3, 1, 2).contiguous()


def of_onnxruntime(folder, batch, dtype):
    """transformers' model, exported by torch."""
    if jax.default_backend() != "cpu":
        raise Unavailable("runs on the CPU here")
    if dtype != "float32":
        raise Unavailable(f"has no {dtype} on the CPU")
    runtime, _ = load("onnxruntime"), load("onnxscript")
    torch, model, pixels = in_torch(folder, batch)

    class Found(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, pixels):
            outputs = self.model(pixels)
            return outputs.logits, outputs.pred_boxes

    without_checks = mock.patch.dict(os.environ, TRANSFORMERS_DISABLE_TORCH_CHECK="1")  # ONNX has no such node
    with tempfile.TemporaryDirectory() as exported, without_checks:
        path = Path(exported) / "model.onnx"
        with torch.no_grad():
            torch.onnx.export(Found().eval(), (pixels,), path, dynamo=True, input_names=["pixels"], verbose=False)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = cores()
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    forward = partial(session.run, None, {"pixels": pixels.numpy()})
    return Prepared(Call(forward, wait=lambda _: None, held=memory.of_process), scores=forward()[0])


OTHERS = {"transformers": of_transformers, "ONNX Runtime": of_onnxruntime}
DETECTORS = {
    name: Detector(2 * (SIDES.get(name, 640),), partial(write, config), program, OTHERS)
    for name, config in CONFIGS.items()
}
