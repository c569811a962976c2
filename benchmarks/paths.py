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
NAMES, BATCHES = "ABCDEFGH", (1, 4, 16)
FORWARD, GRADIENTS = ("forward",), ("x", "offset", "weight")
ERROR = 1.3  # by how much an estimate may be too short, in the last columns


def sections(day):
    yield paragraph(
        f"{day}, estimated with waiting from counts, not measured: bfloat16 data, milliseconds. The path that runs is "
        f"bold. An estimate of the im2col path counts {gpu_estimate.MARGIN} times in comparisons. Gradients are chosen "
        "together, because on the im2col path they share columns and products; those of offset and mask are one "
        f"computation. The last two columns say what would change its path if all estimates of one path were {ERROR} "
        "times as long. `jax_dcn/_operators/deform_conv/gpu_estimate.py` makes the estimates."
    )
    yield list_named({name: SHAPES[name]._replace(batch="batch") for name in NAMES})
    for gpu in gpu_estimate.GPUS.values():
        yield f"## {gpu.architecture}, {DEVICES[gpu.architecture].gpu}\n\n{table(gpu)}"


def table(gpu):
    digits_of = gpu.architecture.removeprefix("sm_")
    capability = f"{digits_of[:-1]}.{digits_of[-1]}"
    head = ["shape", "batch", "forward: fused / im2col", "gradients: fused / im2col / chosen", "gradients by im2col"]
    rows = [[*head, "all, as chosen", f"if fused takes {ERROR} times as long", "if im2col does"]]
    for name in NAMES:
        for batch in BATCHES:
            rows.append([name, str(batch), *cells(SHAPES[name]._replace(batch=batch), capability, gpu)])
    return markdown(rows)


def cells(shape, capability, gpu):
    plan, sizes = planned(shape, capability), sizes_of(shape)
    chosen = {name for name in FORWARD + GRADIENTS if plan[name].path == "im2col"}
    possible = {name for name in FORWARD + GRADIENTS if plan[name].reason.startswith("estimates")}
    forward, gradients = (times(names, chosen, sizes, gpu) for names in (FORWARD, GRADIENTS))
    changes = [
        ", ".join(sorted(by_im2col(possible, sizes, gpu, error) ^ (chosen & possible))) or "-"
        for error in (1 / ERROR, ERROR)
    ]
    return (
        shown(forward[:2], forward[2]),
        shown(gradients, gradients[2]),
        ", ".join(name for name in GRADIENTS if name in chosen) or "none",
        digits((forward[2] + gradients[2]) * 1e3),
        *changes,
    )


def times(names, chosen, sizes, gpu):
    """On the fused path, on the im2col path, and as chosen."""
    found = set(), set(names), chosen & set(names)
    return [gpu_estimate.total_seconds(names, by_im2col, sizes, gpu) for by_im2col in found]


def shown(seconds, chosen):
    return " / ".join(f"**{digits(one * 1e3)}**" if one == chosen else digits(one * 1e3) for one in seconds)


def by_im2col(possible, sizes, gpu, error):
    """What would take the im2col path if its estimates were longer by this factor."""
    found = set()
    for names in (FORWARD, GRADIENTS):
        others = set(names) - possible  # which the fused path cannot do
        found |= gpu_estimate.im2col_choice(set(names) & possible, others, sizes, gpu, error)
    return found


def planned(shape, compute_capability):
    return deform_conv.plan(shape, "bfloat16", platform="cuda", compute_capability=compute_capability)


def sizes_of(shape):
    return gpu_estimate.ConvolutionSizes(
        images=shape.batch,
        image_size=(shape.height, shape.width),
        pixels=math.prod(deform_conv.output_size(shape)),
        rows=deform_conv.output_size(shape)[1],
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
