"""Tables of what devices exchange and hold."""

from datetime import date

import jax

from benchmarks.baselines import PASSES
from benchmarks.measurements import scaling
from benchmarks.reports import links
from benchmarks.reports.formatting import digits, markdown, paragraph
from benchmarks.support.sources import commit

MEGA, GIGA = 1e6, 1e9
NOTE = (
    "Read from programs that XLA compiled for CPU devices; none of them was run. A step is the operator and all its "
    "gradients, in float32 unless another type is named. Bytes are those of the arrays as one device has them after "
    'the exchange. A ring of n devices sends 2(n-1)/n of an array to sum it and (n-1)/n to gather it. "At least" '
    "counts the operands that a device needs all of and does not have, and, in float32, the gradients of the operands "
    "that it has all of. If a device keeps only a part of such a sum, as for an x that came split, the whole sum is "
    'counted, although half of it would be enough to send. "Without rules" is for custom calls that XLA\'s partitioner '
    "knows nothing about. A convolution then works on some output rows at a time, and XLA gathers whole arrays again "
    "for each of these chunks."
)
MEMORY = (
    "256 channels and features in bfloat16, offset and mask in float32; with channel groups, 8 feature groups and 8 "
    "offset groups. Arguments, results and temporary arrays, as XLA's memory analysis reports them for programs "
    "compiled for the CPU."
)


def memory_table():
    rows = [["side", "split", "whole x, GB", *(f"{name}, GB" for name in PASSES)]]
    for side in scaling.SIDES:
        for split, devices in scaling.ONE_IMAGE:
            both = scaling.programs(split, devices, height=side, width=side)
            x = 2 * side**2 * scaling.SHAPES[split.shape].channels
            held = (scaling.held_by(scaling.compiled(program).memory_analysis()) for program in both)
            name = f"{split.name}, {devices} devices" if devices > 1 else "one device"
            rows.append([str(side), name, *(digits(n / GIGA) for n in (x, *held))])
    return markdown(rows)


def table(rows):
    head = ["split", "devices", "forward", "forward + backward", "MB", "at least, MB", "ratio", "MB without rules"]
    cells = [head]
    for row in rows:
        ratio = f"{scaling.total(row.both) / row.least:.3f}" if row.least else "-"
        sizes = (f"{n / MEGA:.3f}" for n in (scaling.total(row.both), row.least))
        kinds = (listed(found) for found in (row.forward, row.both))
        cells.append([row.split, str(row.devices), *kinds, *sizes, ratio, f"{row.without_rules / MEGA:.3f}"])
    return markdown(cells)


def listed(found):
    """Each kind of collective with its number and bytes."""
    kinds = {kind: [c for c in found if c.kind == kind] for kind in sorted({c.kind for c in found})}
    return (
        ", ".join(f"{len(some)} {kind} ({scaling.total(some) / MEGA:.3f} MB)" for kind, some in kinds.items())
        or "nothing"
    )


def sections():
    yield paragraph(f"{date.today()}, {jax.devices()[0].device_kind}, jax {jax.__version__}, commit {commit()}. {NOTE}")
    yield "\n".join(f"- {name}: {shape}" for name, shape in scaling.SHAPES.items())
    for title, splits in (
        ("Deformable convolution", scaling.CONVOLUTIONS),
        ("Deformable PS-RoI pooling", scaling.POOLINGS),
    ):
        rows = [scaling.row(split.name, n, scaling.programs(split, n)) for split in splits for n in scaling.DEVICES]
        yield f"## {title}\n\n{table(rows)}"
    rows = [
        scaling.row(name, n, scaling.model_programs(*model, n))
        for name, model in scaling.models().items()
        for n in scaling.DEVICES
    ]
    yield f"## Models, data parallel: eight images\n\n{table(rows)}"
    yield f"## Memory per device for one image\n\n{paragraph(MEMORY)}\n\n{memory_table()}"
    yield from links.sections()
