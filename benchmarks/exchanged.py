"""`python -m benchmarks.exchanged`: what devices that share a batch exchange in a training step of whole detectors.

It prints the bytes of each kind of collective, read from programs that are compiled for two CPU devices and not run.
"""

import argparse
import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.lowering.hlo import KINDS, collectives
from benchmarks.measurements.detectors import transformers
from benchmarks.reports.formatting import markdown
from examples import detr
from examples.detr import training, weights
from examples.detr.data import Batch
from examples.detr.images import Preprocessor
from examples.detr.matching import Targets
from examples.library.devices import mesh_of
from examples.library.training import first_state, train_step
from examples.rcnn import RCNN, Config, losses, train
from examples.rcnn.weights import shapes

DEVICES, CLASSES, OBJECTS = 2, 80, 16
SMALL = json.loads((Path(detr.__file__).parent / "small.json").read_text())


def of_transformer(config, side):
    """The loss, the recipe, and the shapes of the variables and of the batch."""
    config = weights.with_labels(config, [str(number) for number in range(CLASSES)])
    model, kind = weights.make_model(config), config["model_type"]
    checkpoint = weights.Checkpoint(model, weights.shapes(model), config, Preprocessor.from_json(kind, {}))
    targets = Targets(jnp.zeros((DEVICES, OBJECTS, 4)), jnp.zeros((DEVICES, OBJECTS), int))
    batch = Batch(jnp.zeros((DEVICES, side, side, 3), "uint8"), jnp.ones((DEVICES, side, side), bool), targets)
    return training.Loss.of(checkpoint), training.RECIPES[kind], checkpoint.variables, batch


def of_mask_rcnn(config, side):
    """The same of Mask R-CNN."""
    model, masks = RCNN(config), jnp.zeros((DEVICES, OBJECTS, side, side), "uint8")
    boxes, labels = jnp.zeros((DEVICES, OBJECTS, 4)), jnp.zeros((DEVICES, OBJECTS), int)
    batch = losses.Batch(jnp.zeros((DEVICES, side, side, 3), "uint8"), boxes, labels, masks)
    return train.Loss(model), train.RECIPE, shapes(model), batch


def placed(tree, spec):
    """Shapes with a sharding over the mesh that is set."""
    sharding = NamedSharding(jax.sharding.get_mesh(), spec)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


STEPS = {"small.json": partial(of_transformer, SMALL, 128)}
STEPS |= {name: partial(of_transformer, config, 640) for name, config in transformers.CONFIGS.items()}
STEPS |= {"Mask R-CNN R50, deformable": partial(of_mask_rcnn, Config(classes=CLASSES), 800)}


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=STEPS, default=[*STEPS], help="by default all")
    names = parser.parse_args().models
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    rows = [["MB", "parameters", *KINDS]]
    for name in names:
        loss, recipe, variables, batch = STEPS[name]()
        recipe = replace(recipe, batch_size=DEVICES)
        state = jax.eval_shape(partial(first_state, recipe), variables)
        with jax.set_mesh(mesh_of(jax.devices())):
            lowered = train_step.lower(loss, recipe, placed(state, P()), placed(batch, P("data")))
        total = Counter()
        for one in collectives(lowered.compile()):
            total[one.kind] += one.bytes
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(variables["params"]))
        rows.append([name, *(f"{number / 1e6:.2f}" for number in (size, *(total[kind] for kind in KINDS)))])
    print(markdown(rows))


if __name__ == "__main__":
    main()
