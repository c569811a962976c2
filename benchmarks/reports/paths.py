"""The table of the paths of the convolution, with their estimated times."""

import math

from benchmarks.measurements import deform_conv
from benchmarks.measurements.deform_conv import SHAPES
from benchmarks.reports.formatting import digits, markdown
from jax_dcn._operators.deform_conv import cost_model

NAMES, BATCHES = "ABCDEFG", (1, 4, 16)
COMPUTATIONS = {"forward": "forward", "x": "gradient of x", "offset": "of offset, mask", "weight": "of weight"}


def page(day):
    shapes = "\n".join(f"- {name}: {SHAPES[name]._replace(batch='batch')!s}" for name in NAMES)
    tables = "\n\n".join(f"## {gpu.architecture}, {gpu.name}\n\n{table(gpu)}" for gpu in cost_model.GPUS.values())
    return (
        f"# Fused or plain: the paths of the deformable convolution\n\n{day}, estimated from counts, not measured: "
        "bfloat16 data. Each cell has the milliseconds of the\nfused and of the plain path; the one that runs is bold. "
        "The plain path runs only where its estimate is shorter by a\n"
        f"factor of {cost_model.MARGIN}. `jax_dcn/_operators/deform_conv/cost_model.py` makes the estimates.\n\n"
        f"{shapes}\n\n{tables}\n"
    )


def table(gpu):
    digits_of = gpu.architecture.removeprefix("sm_")
    capability = f"{digits_of[:-1]}.{digits_of[-1]}"
    rows = [["shape", "batch", *COMPUTATIONS.values()]]
    for name in NAMES:
        for batch in BATCHES:
            shape = SHAPES[name]._replace(batch=batch)
            plan = planned(shape, capability)
            rows.append([name, str(batch), *(cell(plan[computation], shape, gpu) for computation in COMPUTATIONS)])
    return markdown(rows)


def cell(choice, shape, gpu):
    sizes = sizes_of(shape)
    times = {
        "fused": cost_model.fused_seconds(choice.computation, sizes, gpu),
        "plain": cost_model.plain_seconds(choice.computation, sizes, gpu),
    }
    shown = {path: digits(seconds * 1e3) for path, seconds in times.items()}
    shown[choice.path] = f"**{shown[choice.path]}**"
    return " / ".join(shown.values())


def planned(shape, compute_capability):
    return deform_conv.plan(shape, "bfloat16", platform="cuda", compute_capability=compute_capability)


def sizes_of(shape):
    return cost_model.Sizes(
        images=shape.batch,
        image_pixels=shape.height * shape.width,
        pixels=math.prod(deform_conv.output_size(shape)),
        taps=9,
        channels=shape.channels,
        features=shape.features,
        groups=shape.groups,
        offset_groups=shape.offset_groups,
        item=2,
    )
