"""`python -m benchmarks.cpu_limits`: on both sides of the limits from which on the fused path of a CPU is chosen.

It measures the fused path and the im2col path, or where no offset is passed, XLA's convolution, with each instruction
set of the processor that has kernels for float32, and writes benchmarks/results/<date>-cpu-limits.md.
"""

import json
import os
import platform
import subprocess
import sys

from benchmarks.kernel_times import compiled
from benchmarks.measurements import convolution
from benchmarks.measurements.convolution import ORDINARY_CONVOLUTION
from benchmarks.measurements.deform_conv import CONVOLUTION, VARIED, Shape
from benchmarks.measurements.timing import interleaved
from benchmarks.reports.formatting import markdown, paragraph
from benchmarks.reports.report import facts, parser, write_page
from benchmarks.support.machine import load, machine
from jax_dcn._operators.deform_conv import on_grid
from jax_dcn._operators.deform_conv.plan import INSTRUCTIONS, MAX_PIXEL_SAMPLES, MIN_GROUP_CHANNELS

SETS = {"x86_64": ("avx2", "avx512"), "aarch64": ("neon",)}.get(platform.machine(), ())
PIXELS = {
    f"{height} x {width} pixels, {channels} channels": Shape(1, height, width, channels, channels)
    for channels in (16, 64, 256, 512)
    for height, width in ((4, 4), (8, 8), (8, 16), (16, 16), (16, 32), (32, 32), (48, 48))
}
GROUPS = {
    f"groups of {64 // groups} channels": Shape(1, 64, 64, 64, 64, groups=groups) for groups in (64, 32, 16, 8, 4)
}
SAMPLES = {
    f"{9 * groups:,} samples, {channels} channels": Shape(1, 32, 32, channels, 64, offset_groups=groups)
    for channels in (128, 256)
    for groups in (16, 32, 64, 128)
}
CHANNELS = {f"{channels} to 64 channels": convolution.Shape(1, 80, channels, 64) for channels in (3, 8, 16, 32)}
FEATURES = {f"64 to {features} channels": convolution.Shape(1, 80, 64, features) for features in (1, 8, 16, 32)}
GRID_GROUPS = {
    f"{groups} groups of {128 // groups} channels": convolution.Shape(1, 80, 128, 128, groups=groups)
    for groups in (32, 16, 8, 2)
}
LIMITS = {
    "Pixels: always fused": PIXELS,
    f"Channels of a group: fused from {MIN_GROUP_CHANNELS} on": GROUPS,
    f"Samples of a pixel: fused up to {MAX_PIXEL_SAMPLES}": SAMPLES,
    f"Channels on the grid: fused from {on_grid.MIN_CHANNELS} on": CHANNELS,
    f"Output channels on the grid: fused from {on_grid.MIN_FEATURES} on, for weight always": FEATURES,
    f"Channels of a group on the grid: fused from {on_grid.MIN_GROUP_CHANNELS} on, for weight always": GRID_GROUPS,
}
ABOUT = (
    "How many times faster the fused path is than the im2col path, or on the grid, without offsets, than XLA's "
    "convolution: the ratio of medians of calls that take turns, for the forward and for gradients. A 3 x 3 "
    "convolution in float32, with a mask unless it is on the grid."
)


def measure(repeats):
    """The ratios of this process, by shape."""
    shapes = {name: shape for by_name in LIMITS.values() for name, shape in by_name.items()}
    return {
        name: [speed(shape, varied, repeats) for varied in passes(shape).values()] for name, shape in shapes.items()
    }


def is_on_grid(shape):
    return isinstance(shape, convolution.Shape)


def passes(shape):
    """The operands whose gradients are computed, or none for the forward, by the name of the pass."""
    of_gradients = {"x": ("x",), "weight": ("weight",)} if is_on_grid(shape) else {"gradients": VARIED}
    return {"forward": ()} | of_gradients


def speed(shape, varied, repeats):
    operator, other = (ORDINARY_CONVOLUTION, "reference") if is_on_grid(shape) else (CONVOLUTION, "im2col")
    problem = operator.problem(shape, "float32")
    calls = {}
    for backend in ("fused", other):
        calls[backend] = compiled(operator.function, problem, varied, problem.options | {"backend": backend})
        calls[backend]()
    times = interleaved(calls, repeats)
    return times[other]["median"] / times["fused"]["median"]


def measured_with(instructions, repeats):
    """What another process measures, or None if the processor lacks the instruction set."""
    command = [sys.executable, "-m", "benchmarks.cpu_limits", "--measure", "--repeats", str(repeats)]
    environment = os.environ | {"JAX_DCN_CPU_INSTRUCTIONS": instructions}
    found = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return found["ratios"] if found["instructions"] == instructions else None


def sections(measured):
    """`measured`: the ratios by instruction set."""
    yield paragraph(ABOUT)
    for title, shapes in LIMITS.items():
        names = passes(next(iter(shapes.values())))
        rows = [["shape", *(f"{instructions}, {pass_}" for instructions in measured for pass_ in names)]]
        for name in shapes:
            rows.append([name, *(f"{ratio:.2f}" for ratios in measured.values() for ratio in ratios[name])])
        yield f"## {title}\n\n{markdown(rows)}"


def main(arguments=None):
    options = parser("cpu_limits", __doc__)
    options.add_argument("--repeats", type=int, default=15, help="how often each call is timed")
    options.add_argument("--measure", action="store_true", help="print the ratios of this process, and write nothing")
    args = options.parse_args(arguments)
    if args.measure:
        ratios = measure(args.repeats) if INSTRUCTIONS in SETS else {}
        print(json.dumps({"instructions": INSTRUCTIONS, "ratios": ratios}))
        return
    about = machine() | {"load average before": load()}
    measured = {name: ratios for name in SETS if (ratios := measured_with(name, args.repeats))}
    about["load average after"] = load()
    write_page(args.out, "cpu-limits", "Limits of the fused path of a CPU", [facts(about), *sections(measured)])


if __name__ == "__main__":
    main()
