"""`python -m benchmarks.paths`: which path of the convolution is estimated to be faster, by shape and architecture."""

import math
from datetime import date

from benchmarks.counting.devices import DEVICES
from benchmarks.measurements import deform_conv
from benchmarks.measurements.deform_conv import SHAPES
from benchmarks.reports.formatting import digits, list_named, markdown, paragraph
from benchmarks.reports.report import parser, write_page
from jax_dcn._operators.deform_conv import gpu_estimate

TITLE = "Fused or im2col: the paths of the deformable convolution"
NAMES, BATCHES = "ABCDEFG", (1, 4, 16)
COMPUTATIONS = {"forward": "forward", "x": "gradient of x", "offset": "of offset, mask", "weight": "of weight"}


def sections(day):
    yield paragraph(
        f"{day}, estimated from counts, not measured: bfloat16 data. Each cell has the milliseconds of the fused and "
        "of the im2col path. The one that runs is bold. The im2col path runs only if its estimate is shorter by a "
        f"factor of {gpu_estimate.MARGIN}. `jax_dcn/_operators/deform_conv/gpu_estimate.py` makes the estimates."
    )
    yield list_named({name: SHAPES[name]._replace(batch="batch") for name in NAMES})
    for gpu in gpu_estimate.GPUS.values():
        yield f"## {gpu.architecture}, {DEVICES[gpu.architecture].gpu}\n\n{table(gpu)}"


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
    estimates = gpu_estimate.fused_seconds, gpu_estimate.im2col_seconds
    shown = [digits(seconds(choice.computation, sizes_of(shape), gpu) * 1e3) for seconds in estimates]
    chosen = int(choice.path != "fused")
    shown[chosen] = f"**{shown[chosen]}**"
    return " / ".join(shown)


def planned(shape, compute_capability):
    return deform_conv.plan(shape, "bfloat16", platform="cuda", compute_capability=compute_capability)


def sizes_of(shape):
    return gpu_estimate.ConvolutionSizes(
        images=shape.batch,
        image_pixels=shape.height * shape.width,
        pixels=math.prod(deform_conv.output_size(shape)),
        taps=9,
        channels=shape.channels,
        features=shape.features,
        groups=shape.groups,
        offset_groups=shape.offset_groups,
        itemsize=2,
    )


def main(arguments=None):
    args = parser("paths", __doc__).parse_args(arguments)
    write_page(args.out, "paths", TITLE, sections(date.today()))


if __name__ == "__main__":
    main()
