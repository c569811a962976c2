"""Mask R-CNN with a ResNet-50: examples.rcnn, and torchvision's, each with random weights of its own.

Both find as many objects as they keep at most, since no score is too low.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.baselines.pytorch import load
from benchmarks.measurements.detectors import CLASSES, Detector, Program, of_torch, torch_device
from examples.library.optimiser import MOMENTUM
from examples.library.training import first_state, train_step
from examples.rcnn.config import Config
from examples.rcnn.detector import RCNN
from examples.rcnn.losses import Batch
from examples.rcnn.train import RECIPE, Loss
from examples.rcnn.weights import initialise

SIDE = 800
RATE, DECAY, CLIP_NORM = 1e-5, 1e-4, 35.0


def program(folder, batch, dtype):
    config = Config(classes=CLASSES, stage_with_dcn=(False,) * 4)
    config = replace(config, objects=replace(config.objects, score_threshold=0.0))
    model = RCNN(config, None if dtype == "float32" else jnp.dtype(dtype))
    variables = initialise(model, jax.random.key(0))
    data = jax.device_put(Batch(batch.pixels, batch.corners, batch.labels, masks(batch)))
    rates = {"learning_rate": RATE * RECIPE.reference_batch, "weight_decay": DECAY, "clip_norm": CLIP_NORM}
    recipe = replace(RECIPE, batch_size=len(data.images), **rates)

    def forward(variables, images):
        found = model.apply(variables, images.astype(jnp.float32))
        return found.scores, found.boxes, found.masks

    return Program(
        forward,
        variables,
        (data.images,),
        partial(train_step, Loss(model), recipe),
        first_state(recipe, jax.tree.map(jnp.copy, variables)),
        data,
    )


def of_torchvision(folder, batch, dtype):
    torch, models = load(), load("torchvision.models.detection")
    made = models.maskrcnn_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=CLASSES + 1,
        min_size=batch.pixels.shape[1],
        max_size=batch.pixels.shape[1],
        box_score_thresh=0.0,
    ).to(device := torch_device())
    pixels = list(torch.tensor(batch.pixels, device=device).permute(0, 3, 1, 2).float() / 255)
    arrays = (batch.corners.astype(np.float32), batch.labels.astype(np.int64) + 1, masks(batch))
    arrays = [torch.tensor(array, device=device) for array in arrays]
    targets = [dict(zip(("boxes", "labels", "masks"), one, strict=True)) for one in zip(*arrays, strict=True)]
    trained = [one for one in made.parameters() if one.requires_grad]
    optimiser = torch.optim.SGD(trained, RATE, momentum=MOMENTUM, weight_decay=DECAY)
    return of_torch(
        lambda: made.eval()(pixels)[0]["scores"],
        lambda: sum(made.train()(pixels, targets).values()),
        trained,
        optimiser,
        CLIP_NORM,
        dtype=dtype,
    )._replace(scores=None)


def masks(batch):
    """The boxes, filled: uint8 [batch, objects, side, side]."""
    x0, y0, x1, y1 = np.moveaxis(batch.corners, -1, 0)[..., None]
    places = np.arange(batch.pixels.shape[1]) + 0.5
    rows, columns = (y0 < places) & (places < y1), (x0 < places) & (places < x1)
    return (rows[..., None] & columns[..., None, :]).astype(np.uint8)


DETECTORS = {"Mask R-CNN R50": Detector((SIDE, SIDE), lambda folder: None, program, {"torchvision": of_torchvision})}
