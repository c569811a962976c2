"""`python -m benchmarks.detr_training`: a training step of RT-DETRv2, with the kernels and in pure JAX.

It measures the time of the step, that of the assignment of targets within it, and the temporary memory of the step.
"""

import contextlib
import json
from functools import partial
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp

from benchmarks.baselines import Call
from benchmarks.measurements.timing import interleaved
from benchmarks.reports.formatting import digits, markdown, paragraph
from benchmarks.reports.report import facts, parser, write_page
from benchmarks.support.machine import load, machine
from examples import detr
from examples.detr import decoder, training, weights
from examples.detr.data import Batch
from examples.detr.evaluate import Detector
from examples.detr.matching import Targets, match
from examples.detr.optimiser import Recipe

SMALL = json.loads((Path(detr.__file__).parent / "small.json").read_text())
R18 = {
    "model_type": "rt_detr_v2",
    "backbone_config": {
        "model_type": "rt_detr_resnet",
        "layer_type": "basic",
        "hidden_sizes": [64, 128, 256, 512],
        "depths": [2, 2, 2, 2],
        "out_features": ["stage2", "stage3", "stage4"],
    },
    "encoder_in_channels": [128, 256, 512],
    "decoder_layers": 3,
    "hidden_expansion": 0.5,
}
PROBLEMS = {  # (config, images, side, targets per image)
    "small, 16 images of 128²": (SMALL, 16, 128, 10),
    "R18, 2 images of 640²": (R18, 2, 640, 30),
}
BACKENDS = ("kernels", "pure JAX")
ABOUT = """\
Milliseconds of a step in float32: the median of calls that take turns, with the smallest and the largest. The step has
the forward with denoising queries, all losses, the gradients, AdamW and the moving average. The assignment is that of
all layers and proposals, on its own. MiB: temporary arrays of the step, as XLA plans them."""
HEAD = ("problem", "kernels, ms", "pure JAX, ms", "ratio", "assignment, ms", "kernels, MiB", "pure JAX, MiB")


@contextlib.contextmanager
def operator(backend):
    """Within it, models are compiled with the kernels or with the operator in jax.numpy."""
    layer = decoder.MultiScaleDeformableAttention
    chosen = partial(layer, backend="reference") if backend == "pure JAX" else layer
    with mock.patch.object(decoder, "MultiScaleDeformableAttention", chosen):
        jax.clear_caches()
        yield


def problem(config, images, side, objects):
    """(detector, criterion, recipe, first state, batch)."""
    key = jax.random.key(0)
    checkpoint = weights.initialise(weights.with_labels(config, [str(index) for index in range(10)]), key)
    recipe = Recipe(1000)
    boxes = jax.random.uniform(key, (images, objects, 4), minval=0.2, maxval=0.5)
    targets = Targets(boxes, jax.random.randint(key, (images, objects), 0, 10))
    pixels = jax.random.randint(key, (images, side, side, 3), 0, 256).astype(jnp.uint8)
    batch = Batch(pixels, jnp.ones(pixels.shape[:3], bool), targets)
    state = training.first_state(checkpoint.variables, recipe)
    return Detector.of(checkpoint), weights.criterion(checkpoint), recipe, state, batch


def row(name, repeats):
    config, images, side, objects = PROBLEMS[name]
    detector, criterion, recipe, state, batch = problem(config, images, side, objects)
    calls, memory = {}, {}
    for backend in BACKENDS:
        with operator(backend):
            # The state is donated in training. Here every call gets the same one.
            step = jax.jit(partial(training.train_step.__wrapped__, detector, criterion, recipe))
            compiled = step.lower(state, batch).compile()
        calls[backend] = Call(partial(compiled, state, batch))
        memory[backend] = compiled.memory_analysis().temp_size_in_bytes / 2**20
    settings = detector.model.config
    sets = settings.decoder_layers + 1, images, settings.num_queries
    found = (jax.random.normal(jax.random.key(1), (*sets, 10)), jax.random.uniform(jax.random.key(2), (*sets, 4)))
    assignment = jax.jit(partial(match, targets=batch.targets, weights=criterion.costs)).lower(*found).compile()
    calls["assignment"] = Call(partial(assignment, *found))
    for call in calls.values():
        call()
    seconds = interleaved(calls, repeats)
    ratio = seconds["pure JAX"]["median"] / seconds["kernels"]["median"]
    times = [_cell(seconds[kind]) for kind in (*BACKENDS, "assignment")]
    times.insert(2, f"{ratio:.2f}")
    return [name, *times, *(digits(round(memory[backend], 1)) for backend in BACKENDS)]


def _cell(seconds):
    middle, low, high = (digits(seconds[key] * 1e3) for key in ("median", "min", "max"))
    return f"{middle} ({low} to {high})"


def main(arguments=None):
    options = parser("detr_training", __doc__)
    options.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS), help="which (all)")
    options.add_argument("--repeats", type=int, default=7, help="how often each program is timed")
    args = options.parse_args(arguments)
    about = machine() | {"load average before": load()}
    rows = [row(name, args.repeats) for name in args.problems]
    about["load average after"] = load()
    sections = [facts(about), paragraph(ABOUT), markdown([HEAD, *rows])]
    write_page(args.out, f"{jax.default_backend()}-detr-training", "A training step of RT-DETRv2", sections)


if __name__ == "__main__":
    main()
