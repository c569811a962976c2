"""`python -m benchmarks.cpu_limits`: on both sides of the limits from which on the fused path of a CPU is chosen.

It measures the fused path and the im2col path with each instruction set of the processor that has kernels for float32,
and writes benchmarks/results/<date>-cpu-limits.md.
"""

import json
import os
import platform
import subprocess
import sys

from benchmarks.kernel_times import compiled
from benchmarks.measurements import deform_conv
from benchmarks.measurements.deform_conv import Shape
from benchmarks.measurements.timing import interleaved
from benchmarks.reports.formatting import markdown, paragraph
from benchmarks.reports.report import facts, parser, write_page
from benchmarks.support.machine import load, machine
from jax_dcn._operators.deform_conv.plan import INSTRUCTIONS, MAX_PIXEL_SAMPLES, MIN_GROUP_CHANNELS

BACKENDS, PASSES = ("fused", "im2col"), ("forward", "gradients")
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
LIMITS = {
    "Pixels: always fused": PIXELS,
    f"Channels of a group: fused from {MIN_GROUP_CHANNELS} on": GROUPS,
    f"Samples of a pixel: fused up to {MAX_PIXEL_SAMPLES}": SAMPLES,
}
ABOUT = (
    "How many times faster the fused path is than the im2col path: the ratio of medians of calls that take turns, "
    "without and with gradients. A 3 x 3 convolution in float32 with a mask."
)


def measure(repeats):
    """The ratios of this process, by shape."""
    shapes = {name: shape for by_name in LIMITS.values() for name, shape in by_name.items()}
    return {name: [speed(shape, pass_, repeats) for pass_ in PASSES] for name, shape in shapes.items()}


def speed(shape, pass_, repeats):
    problem = deform_conv.problem(shape, "float32")
    times = interleaved({backend: prepared(problem, pass_, backend) for backend in BACKENDS}, repeats)
    return times["im2col"]["median"] / times["fused"]["median"]


def prepared(problem, pass_, backend):
    """The call of a compiled program, which has run once."""
    varied = problem.varied if pass_ == "gradients" else ()
    call = compiled(deform_conv.deformable, problem, varied, problem.options | {"backend": backend})
    call()
    return call


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
        rows = [["shape", *(f"{name}, {pass_}" for name in measured for pass_ in PASSES)]]
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
