"""`python -m benchmarks.training_programs`: the program of a training step, as XLA compiles it for an H100.

It needs no GPU, but XLA's compiler for GPUs: `make .venv/gpu-compiler`.
"""

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import jax

from benchmarks.lowering.launches import launches
from benchmarks.measurements.detectors import DTYPES, images, mask_rcnn, transformers
from benchmarks.reports.formatting import digits, markdown, paragraph
from benchmarks.reports.report import facts, parser, write_page
from benchmarks.support import gpu_compiler, memory
from benchmarks.support.machine import machine

DETECTORS = transformers.DETECTORS | mask_rcnn.DETECTORS
# No autotuning, because there is no GPU to measure on.
OPTIONS = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_autotune_level": 0}
NOTE = (
    "A launch is a kernel of XLA's, or a call of cuBLAS, cuDNN or this package, which may launch several. Products "
    "are cuBLAS's. GB are the results of all launches, and what they read of their operands, as if none were in a "
    "cache. MiB are of temporary arrays. Seconds are of this processor."
)


def compiled(detector, batch, side, dtype):
    """The compiled step, its temporary bytes, and the seconds that it took."""
    with tempfile.TemporaryDirectory() as folder:
        detector.write(Path(folder))
        program = detector.program(Path(folder), images(batch, (side, side) if side else detector.size), dtype)
    state, data = gpu_compiler.on_gpu((program.state, program.batch))
    begin = time.perf_counter()
    lowered = jax.jit(program.step, donate_argnums=0).lower(state, data)
    traced = time.perf_counter()
    step = lowered.compile(OPTIONS)
    seconds = {"tracing": traced - begin, "compiling": time.perf_counter() - traced}
    return step, memory.of_compiled(step) - step.memory_analysis().alias_size_in_bytes, seconds


def sections(name, found, shown):
    """The launches of a step by kind, and those sources that have most of them or move most."""
    yield f"## {name}"
    kinds = Counter()
    for one in found:
        kinds[one.kind] += one.times
    rows = [
        [kind, str(count), gigabytes(one for one in found if one.kind == kind)] for kind, count in kinds.most_common()
    ]
    yield markdown([["kind", "launches", "GB"], *rows, ["all", str(kinds.total()), gigabytes(found)]])
    places = {}
    for one in found:
        places.setdefault((one.kind, one.source, one.caller), []).append(one)
    largest = sorted(places.items(), key=lambda place: -sum(one.times for one in place[1]))[:shown]
    largest += sorted(places.items(), key=lambda place: -sum(one.times * one.bytes for one in place[1]))[:shown]
    yield markdown(
        [["kind", "line", "called from", "launches", "GB"]]
        + [
            [*place, str(sum(one.times for one in of_place)), gigabytes(of_place)]
            for place, of_place in dict(largest).items()
        ]
    )


def gigabytes(found):
    return digits(sum(one.times * one.bytes for one in found) / 1e9)


def main(arguments=None):
    made = parser("training_programs", __doc__)
    add = made.add_argument
    add("--models", nargs="+", choices=DETECTORS, default=list(DETECTORS))
    add("--images", type=int, default=16, help="in a batch")
    add("--side", type=int, help="height and width of the images in pixels, by default those of each model")
    add("--dtype", choices=DTYPES, default="bfloat16")
    add("--sources", type=int, default=20, help="how many lines of code have most launches, and move most")
    args = made.parse_args(arguments)
    gpu_compiler.initialise()
    jax.config.update("jax_traceback_in_locations_limit", -1)
    head = [["model", "launches", "GB", "MiB", "tracing, s", "compiling, s"]]
    details = []
    for name in args.models:
        step, held, seconds = compiled(DETECTORS[name], args.images, args.side, args.dtype)
        found = launches(step.as_text())
        total = sum(one.times for one in found)
        head.append([name, str(total), gigabytes(found), digits(held / 2**20), *map(digits, seconds.values())])
        details += sections(name, found, args.sources)
    about = facts(machine() | {"images": args.images, "type": args.dtype})
    write_page(
        args.out,
        "h100-training-programs",
        "Training steps, compiled for an H100",
        [about, paragraph(NOTE), markdown(head), *details],
    )


if __name__ == "__main__":
    sys.exit(main())
