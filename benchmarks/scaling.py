"""`python -m benchmarks.scaling`: what devices exchange in a training step, and how much memory they need.

Programs are compiled for eight CPU devices, which any machine can simulate, and are not run: their arguments are only
shapes. The exchanges are compared with the least possible, and with those of custom calls without partitioning rules.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from datetime import date
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_dcn
from benchmarks.baselines import PASSES
from benchmarks.lowering.hlo import Collective, collectives
from benchmarks.measurements import deform_conv, roi_pool
from benchmarks.reports.formatting import digits, list_named, markdown, paragraph
from benchmarks.reports.report import parser, write_page
from benchmarks.support.sources import commit

DEVICES = (1, 2, 4, 8)
SIDES = (2048, 4096, 8192)
SHAPES = {
    "convolution": deform_conv.SHAPES["B"]._replace(batch=8),
    "grouped": deform_conv.SHAPES["H"]._replace(batch=8, offset_groups=8),
    "large": deform_conv.Shape(1, 1024, 1024, 256, 256),
    "large grouped": deform_conv.Shape(1, 1024, 1024, 256, 256, groups=8, offset_groups=8),
    "pooling": roi_pool.PSROI_POOL.shapes["P3"]._replace(images=8),
    "batched pooling": roi_pool.PSROI_POOL.shapes["P3"]._replace(images=8),  # each image a batch, with as many regions
}

MEGA, GIGA = 1e6, 1e9
NOTE = (
    "Read from programs that XLA compiled for CPU devices; none of them was run. A step is the operator and all its "
    "gradients, in float32 unless another type is named. Bytes are those of the arrays as one device has them after "
    'the exchange. A ring of n devices sends 2(n-1)/n of an array to sum it and (n-1)/n to gather it. "At least" '
    "counts the operands that a device needs all of and does not have, and, in float32, the gradients of the operands "
    "that it has all of. If a device keeps only a part of such a sum, as for an x that came split, the whole sum is "
    'counted, although half of it would be enough to send. "Without rules" is for custom calls that XLA\'s partitioner '
    "knows nothing about, so that XLA gathers their operands: once where the fused kernels of the CPU run. On the "
    "im2col path a convolution works on some output rows at a time, and XLA gathers whole arrays again for each of "
    "these parts."
)
MEMORY = (
    "256 channels and features in bfloat16, offset and mask in float32; with channel groups, 8 feature groups and 8 "
    "offset groups. Arguments, results and temporary arrays, as XLA's memory analysis reports them for programs "
    "compiled for the CPU."
)


class Split(NamedTuple):
    """How arrays are split over the mesh axes "a" and "b"; all other arrays are replicated."""

    name: str
    operands: dict[str, P]
    result: P
    shape: str = "convolution"
    gathered: tuple[str, ...] = ()  # operands that come split, and of which each device needs all
    b: int = 1  # the largest size of the mesh axis "b"
    dtype: type = jnp.float32


def data(*axes):
    return dict.fromkeys(("x", "offset", "mask"), P(*axes))


def features(axis):
    return {"weight": P(None, None, None, axis), "bias": P(axis)}


ROWS = P(None, "a")
POSITIONS = {"offset": ROWS, "mask": ROWS}
CHANNELS = P(None, None, None, "a")
CONVOLUTIONS = (
    Split("images", data("a"), P("a")),
    Split("images, bfloat16", data("a"), P("a"), dtype=jnp.bfloat16),
    Split("images, weight kept in parts", data("a") | features("a"), P("a"), gathered=("weight", "bias")),
    Split("features", features("a"), CHANNELS),
    Split("images, and features in 2", data("a") | features("b"), P("a", None, None, "b"), b=2),
    Split("channel groups", data(*CHANNELS) | features("a"), CHANNELS, "grouped"),
    Split("rows", POSITIONS, ROWS, "large"),
    Split("rows, x split too", POSITIONS | {"x": ROWS}, ROWS, "large", gathered=("x",)),
)
ONE_IMAGE = [
    (Split(name, operands, result, shape, dtype=jnp.bfloat16), devices)
    for name, operands, result, shape, devices in (
        ("", {}, P(), "large", 1),
        ("rows", POSITIONS, ROWS, "large", 8),
        ("features", features("a"), CHANNELS, "large", 8),
        ("channel groups", data(*CHANNELS) | features("a"), CHANNELS, "large grouped", 8),
    )
]
POOLINGS = (
    Split("images with their regions", dict.fromkeys(("x", "rois", "offset"), P("a")), P("a"), "batched pooling"),
    Split("regions", dict.fromkeys(("rois", "offset"), P("a")), P("a"), "pooling"),
    Split("images that regions name", dict.fromkeys(("x", "rois", "offset"), P("a")), P("a"), "pooling", ("x",)),
)


class Program(NamedTuple):
    """A function, its arguments, and the fewest bytes that devices must exchange to compute it."""

    function: Callable
    arguments: tuple[Any, ...]
    least: int


class Row(NamedTuple):
    """What devices exchange, forward and forward + backward. Bytes are those of the results on one device."""

    split: str
    devices: int
    forward: list[Collective]
    both: list[Collective]
    least: int  # fewest bytes, forward + backward
    without_rules: int  # bytes without partitioning rules, forward + backward


def operator(shape, batched):
    """A function of named operands, and their shapes. `batched` gives each image of a pooling its own batch."""
    if isinstance(shape, deform_conv.Shape):
        shapes = deform_conv.operand_shapes(shape) | {"bias": (shape.features,)}
        return partial(convolution, groups=shape.groups), shapes
    images, regions = (shape.images, 1), (shape.images, shape.rois // shape.images)
    if not batched:
        images, regions = (shape.images,), (shape.rois,)
    bins = roi_pool.BINS
    shapes = {
        "x": (*images, shape.height, shape.width, shape.features),
        "rois": (*regions, 5),
        "offset": (*regions, bins, bins, 2),
    }
    return partial(pooling, bins=bins, stride=shape.stride), shapes


def convolution(operands, groups):
    return jax_dcn.deform_conv2d(**operands, feature_group_count=groups)


def pooling(operands, bins, stride):
    return jax_dcn.deform_psroi_pool(**operands, output_size=bins, spatial_scale=1 / stride)


def programs(split, devices, **size):
    """The programs of the operator and of the operator with all gradients; `size` replaces sizes of the shape."""
    function, shapes = operator(SHAPES[split.shape]._replace(**size), split.shape == "batched pooling")
    b = min(split.b, devices)
    mesh = make_mesh((devices // b, b))

    def placed(name):
        dtype = jnp.float32 if name in ("offset", "mask", "rois") else split.dtype
        return struct(shapes[name], dtype, mesh, split.operands.get(name, P()))

    operands = {name: placed(name) for name in shapes}
    result = jax.eval_shape(function, operands)
    cotangent = struct(result.shape, result.dtype, mesh, split.result)
    gathered = sum(math.prod(shapes[name]) * operands[name].dtype.itemsize for name in split.gathered)
    summed = sum(4 * math.prod(shape) for shape in sums(operands, split, mesh))

    def gradients(operands, cotangent):
        varied = {name: array for name, array in operands.items() if name != "rois"}
        y, pull = jax.vjp(lambda varied: function(operands | varied), varied)
        return y, pull(cotangent)

    if devices == 1:
        gathered = summed = 0
    return Program(function, (operands,), gathered), Program(gradients, (operands, cotangent), gathered + summed)


def sums(operands, split, mesh):
    """The shapes on one device of the gradients that are summed: the work is split over an axis, the operand is not."""
    for name, array in operands.items():
        whole = name in split.gathered
        working = set(split.result) - (set() if whole else set(array.sharding.spec))
        if name != "rois" and any(axis and mesh.shape[axis] > 1 for axis in working):
            yield array.shape if whole else array.sharding.shard_shape(array.shape)


def make_mesh(shape):
    devices = jax.devices("cpu")[: math.prod(shape)]
    return jax.make_mesh(shape, ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=devices)


def struct(shape, dtype, mesh, spec):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def models():
    """Pairs of a model and its loss, by name."""
    from examples.detector import losses as detector
    from examples.detector.model import Detector
    from examples.digits_library.scenes import CLASSES
    from examples.rfcn import losses as rfcn
    from examples.rfcn.model import RFCN

    classes = len(CLASSES)
    return {
        "detector, ordinary convolutions": (Detector(classes), detector.loss),
        "detector, deformable": (Detector(classes, operator="deformable"), detector.loss),
        "R-FCN, both deformable": (RFCN(classes, True, True), rfcn.loss),
    }


def model_programs(model, loss, devices):
    """The loss of eight images, and the loss with its gradient. Only the arguments' sharding says data parallel."""
    from examples.digits_library import scenes

    mesh, batch, size = make_mesh((devices, 1)), 8, scenes.IMAGE_SIZE

    def of_batch(*shape, dtype):
        return struct((batch, *shape), dtype, mesh, P("a"))

    scene = scenes.Scenes(
        of_batch(size, size, 3, dtype=jnp.uint8),
        of_batch(scenes.MAX_OBJECTS, 4, dtype=jnp.float32),
        of_batch(scenes.MAX_OBJECTS, dtype=jnp.int32),
    )
    params = jax.eval_shape(model.init, jax.random.key(0), scene.images)["params"]
    params = jax.tree.map(lambda leaf: struct(leaf.shape, leaf.dtype, mesh, P()), params)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    of_model = partial(loss, model)
    least = 0 if devices == 1 else 4 * parameters
    return Program(of_model, (params, scene), 0), Program(jax.value_and_grad(of_model), (params, scene), least)


def row(name, devices, programs):
    forward, both = programs
    return Row(name, devices, exchanged(forward), exchanged(both), both.least, total(exchanged(both, rules=False)))


def exchanged(program, rules=True):
    without_rules = mock.patch("jax_dcn._primitive.meshes.meshes_to_partition", return_value=None)
    with nullcontext() if rules else without_rules:
        return collectives(compiled(program))


def compiled(program):
    def function(*arguments):  # a new function each time, because jax caches lowered programs by function
        return program.function(*arguments)

    return jax.jit(function).lower(*program.arguments).compile()


def total(found):
    return sum(collective.bytes for collective in found)


def held_by(account):
    return account.argument_size_in_bytes + account.output_size_in_bytes + account.temp_size_in_bytes


def memory_table():
    rows = [["side", "split", "whole x, GB", *(f"{name}, GB" for name in PASSES)]]
    for side in SIDES:
        for split, devices in ONE_IMAGE:
            both = programs(split, devices, height=side, width=side)
            x = 2 * side**2 * SHAPES[split.shape].channels
            held = (held_by(compiled(program).memory_analysis()) for program in both)
            name = f"{split.name}, {devices} devices" if devices > 1 else "one device"
            rows.append([str(side), name, *(digits(n / GIGA) for n in (x, *held))])
    return markdown(rows)


def table(rows):
    head = ["split", "devices", "forward", "forward + backward", "MB", "at least, MB", "ratio", "MB without rules"]
    cells = [head]
    for row in rows:
        ratio = f"{total(row.both) / row.least:.3f}" if row.least else "-"
        sizes = (f"{n / MEGA:.3f}" for n in (total(row.both), row.least))
        kinds = (listed(found) for found in (row.forward, row.both))
        cells.append([row.split, str(row.devices), *kinds, *sizes, ratio, f"{row.without_rules / MEGA:.3f}"])
    return markdown(cells)


def listed(found):
    """Each kind of collective with its number and bytes."""
    kinds = {kind: [c for c in found if c.kind == kind] for kind in sorted({c.kind for c in found})}
    return ", ".join(f"{len(some)} {kind} ({total(some) / MEGA:.3f} MB)" for kind, some in kinds.items()) or "nothing"


def sections():
    yield paragraph(f"{date.today()}, {jax.devices()[0].device_kind}, jax {jax.__version__}, commit {commit()}. {NOTE}")
    yield list_named(SHAPES)
    for title, splits in (("Deformable convolution", CONVOLUTIONS), ("Deformable PS-RoI pooling", POOLINGS)):
        rows = [row(split.name, n, programs(split, n)) for split in splits for n in DEVICES]
        yield f"## {title}\n\n{table(rows)}"
    rows = [row(name, n, model_programs(*model, n)) for name, model in models().items() for n in DEVICES]
    yield f"## Models, data parallel: eight images\n\n{table(rows)}"
    yield f"## Memory per device for one image\n\n{paragraph(MEMORY)}\n\n{memory_table()}"


def main(arguments=None):
    args = parser("scaling", __doc__).parse_args(arguments)
    jax.config.update("jax_num_cpu_devices", max(DEVICES))
    write_page(args.out, "scaling", "What devices exchange, and their memory", sections())


if __name__ == "__main__":
    main()
