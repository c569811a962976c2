"""`python -m benchmarks.keras_models`: D-FINE of keras-hub, with its own sampling and with this package's operator.

It measures time and peak memory of inference, of a training step and of the decoder. It needs keras and keras-hub.
"""

import json
import os
import statistics
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.baselines import Call
from benchmarks.measurements import timing
from benchmarks.reports.formatting import digits, markdown, paragraph
from benchmarks.reports.report import facts, parser, write_page
from benchmarks.support import memory
from benchmarks.support.machine import installed, load, machine
from examples.keras_d_fine import use_kernels

TITLE = "D-FINE of keras-hub, with its own sampling and with jax_dcn's operator"
CONFIG = Path(__file__).with_name("keras_d_fine_small.json")
MEMORY_CALLS = 3
ABOUT = (
    "D-FINE-S with random weights, images of {size} x {size} pixels, 300 queries, float32, Keras on JAX. jax_dcn is "
    "the same model after `use_kernels` of `examples/keras_d_fine.py`. A training step is the forward, keras-hub's "
    "losses for 3 objects per image without denoising, the gradients, and AdamW. The gradients of the decoder are "
    "those of the sum of the squares of its scores and boxes, in its weights and inputs. Milliseconds: the median of "
    "{repeats} calls that take turns, with the smallest and the largest. MiB: by how much a call makes the process "
    f"grow, results included; the median of {MEMORY_CALLS} calls. Difference: the largest between the results (of a "
    "training step, between the losses), as a fraction of the largest result."
)


def detector(size):
    """D-FINE-S. The weights that keras-hub initialises with zeros, with which all queries would sample alike, vary."""
    import keras
    from keras_hub import models

    keras.utils.set_random_seed(0)
    config, shape = json.loads(CONFIG.read_text()), {"image_shape": (size, size, 3)}
    backbone = models.HGNetV2Backbone(**config["backbone"], **shape)
    model = models.DFineBackbone(backbone, **config["detector"], anchor_image_size=(size, size), **shape)
    random = np.random.default_rng(0)
    for weight in model.decoder.trainable_variables:
        if weight.path.endswith("kernel") and not np.any(weight):
            weight.assign(random.normal(scale=0.05, size=weight.shape))
    return models.DFineObjectDetector(model, num_classes=model.num_labels, bounding_box_format="xyxy")


def values(variables):
    return [variable.value for variable in variables]


def of_model(model, batch):
    """Functions by name, which return what is compared and what is not, and their arguments."""
    import keras

    size = model.backbone.image_shape[0]
    images = jax.random.uniform(jax.random.key(0), (batch, size, size, 3), maxval=255)
    boxes = size * jnp.array([[0.1, 0.1, 0.3, 0.4], [0.2, 0.3, 0.9, 0.8], [0.5, 0, 0.7, 0.2]])
    targets = {"boxes": jnp.tile(boxes, (batch, 1, 1)), "labels": jnp.tile(jnp.arange(3), (batch, 1))}
    optimizer = keras.optimizers.AdamW(1e-4)
    optimizer.build(model.trainable_variables)

    def inference(weights, rest, images, state):
        outputs, _ = model.stateless_call(weights, rest, images, training=False)
        return (outputs["logits"], outputs["pred_boxes"]), ()

    def training_step(weights, rest, images, state):
        def loss(weights):
            outputs, averages = model.stateless_call(weights, rest, images, training=True)
            return model.compute_loss(images, targets, outputs, None), averages

        (value, averages), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        return value, (averages, optimizer.stateless_apply(state, gradients, weights))

    weights = values(model.trainable_variables), values(model.non_trainable_variables)
    return {"inference": inference, "training step": training_step}, (*weights, images, values(optimizer.variables))


def of_decoder(model, batch):
    """The same for the decoder."""
    decoder, queries, channels = model.backbone.decoder, model.backbone.num_queries, model.backbone.hidden_dim
    levels, keys = decoder.spatial_shapes, jax.random.split(jax.random.key(1), 3)
    shapes = (queries, channels), (sum(height * width for height, width in levels), channels), (queries, 4)
    inputs = [jax.random.normal(key, (batch, *shape)) for key, shape in zip(keys, shapes, strict=True)]

    def forward(weights, rest, *inputs):
        inputs = (*inputs, jnp.array(levels))
        outputs, _ = decoder.stateless_call(weights, rest, *inputs, output_attentions=True, training=False)
        return outputs[2:4], ()

    def squares(*arguments):
        return sum(jnp.sum(result**2) for result in forward(*arguments)[0])

    def backward(*arguments):
        return jax.grad(squares, argnums=(0, 2, 3))(*arguments), ()

    weights = values(decoder.trainable_variables), values(decoder.non_trainable_variables)
    return {"decoder, forward": forward, "decoder, forward + backward": backward}, (*weights, *inputs)


def rows(models, batch, repeats):
    for part in (of_model, of_decoder):
        functions, arguments = zip(*(part(model, batch) for model in models), strict=True)
        for name in functions[0]:
            calls = [Call(compiled(each[name], own)) for each, own in zip(functions, arguments, strict=True)]
            yield [name, str(batch), *row(calls, repeats)]


def compiled(function, arguments):
    return partial(jax.jit(function).lower(*arguments).compile(), *arguments)


def row(calls, repeats):
    """The cells for keras-hub's call and for this package's, of which each is timed `repeats` times, in turns."""
    results = [jax.tree.map(np.asarray, call()[0]) for call in calls]
    sizes = [statistics.median(memory.of_process(call)[1] for _ in range(MEMORY_CALLS)) for call in calls]
    seconds = zip(*([timing.timed(call) for call in calls] for _ in range(repeats)), strict=True)
    times = [timing.summary(one) for one in seconds]
    ratio = f"**{times[0]['median'] / times[1]['median']:.2f}**"
    return [*map(milliseconds, times), ratio, *(digits(size / 2**20) for size in sizes), difference(*results)]


def milliseconds(seconds):
    middle, low, high = (digits(seconds[key] * 1e3) for key in ("median", "min", "max"))
    return f"{middle} ({low} to {high})"


def difference(theirs, ours):
    pairs = [*zip(jax.tree.leaves(theirs), jax.tree.leaves(ours), strict=True)]
    return f"{max(abs(a - b).max() for a, b in pairs) / max(abs(a).max() for a, _ in pairs):.1e}"


def main(arguments=None):
    options = parser("keras_models", __doc__)
    options.add_argument("--size", type=int, default=640, help="height and width of the images, a multiple of 32")
    options.add_argument("--batches", type=int, nargs="+", default=[1, 4], help="images per call")
    options.add_argument("--repeats", type=int, default=7, help="how often each program is timed")
    args = options.parse_args(arguments)
    os.environ["KERAS_BACKEND"] = "jax"  # read when keras is imported
    about = machine() | {name: installed(name) for name in ("keras", "keras-hub")} | {"load average before": load()}
    models = detector(args.size), use_kernels(detector(args.size))
    head = ["program", "batch", "keras-hub, ms", "jax_dcn, ms", "keras-hub / jax_dcn"]
    table = [[*head, "keras-hub, MiB", "jax_dcn, MiB", "difference"]]
    table += [one for batch in args.batches for one in rows(models, batch, args.repeats)]
    sections = [facts(about | {"load average after": load()}), paragraph(ABOUT.format(**vars(args))), markdown(table)]
    write_page(args.out, f"{jax.default_backend()}-keras-d-fine", TITLE, sections)


if __name__ == "__main__":
    main()
