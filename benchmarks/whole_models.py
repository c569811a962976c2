"""`python -m benchmarks.whole_models`: whole detectors beside those of other libraries.

The detection transformers have the same random weights as those of transformers, and all have the same images. Each
implementation has a process of its own, and they take turns unless they run alone. A step is the forward (with
denoising queries), all losses of ten objects in each image, the gradients, clipping and the optimiser.
"""

import itertools
import os
import sys
import tempfile
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np

from benchmarks.baselines import Unavailable, summary_of
from benchmarks.measurements.detectors import DTYPES, images, mask_rcnn, transformers
from benchmarks.measurements.detectors.processes import Process
from benchmarks.measurements.timing import summary
from benchmarks.measurements.trace import median, total
from benchmarks.reports.formatting import digits, markdown, paragraph
from benchmarks.reports.report import facts, parser, write_json, write_page
from benchmarks.support.machine import load, machine

DETECTORS = transformers.DETECTORS | mask_rcnn.DETECTORS
PASSES = ("forward", "step")
TOLERANCE = 1e-2  # of scores in float32, relative to their norm; with other types, other queries may be chosen
NOTE = (
    "Milliseconds of a call, median (smallest to largest), and how many times longer jax_dcn takes. MiB "
    "are those of temporary arrays and results of a call: as XLA plans them, or how much the process grew, or on a GPU "
    "the peak of torch's allocator."
)
FIRST = (
    "Seconds until the first step has ended, if no program is in a cache, and again if its program is; and the "
    "operations of the program in StableHLO."
)
FIRST_CELLS = ("tracing", "compiling", "all", "compiling again", "all again", "operations")


def measure(name, batch, side, dtype, repeats, chosen, alone):
    """A row for each pass of a detector."""
    detector = DETECTORS[name]
    data = images(batch, (side, side) if side else detector.size)
    on_gpu = jax.default_backend() == "gpu"
    names = [one for one in detector.implementations if one in chosen]
    prepared, without, rows = {}, {}, {pass_: {"bytes": {}, "seconds": {}, "kernels": {}} for pass_ in PASSES}
    for group in [[one] for one in names] if alone else [names]:
        with started(group) as processes:
            of_group, missing = prepare(detector, processes, data, dtype)
            prepared |= of_group
            without |= missing
            if "jax_dcn" not in prepared:
                raise RuntimeError(f"jax_dcn failed: {without['jax_dcn']}")
            for pass_, found in rows.items():
                having = {other: processes[other] for other, one in of_group.items() if pass_ in one.passes}
                found["bytes"] |= {other: process.held(pass_) for other, process in having.items()}
                found["seconds"] |= taking_turns(having, pass_, repeats)
                if on_gpu:
                    found["kernels"] |= {other: process.profile(pass_) for other, process in having.items()}
    ours = prepared["jax_dcn"].scores
    rows["step"]["first step"] = {other: prepared[other].first_step for other in rows["step"]["seconds"]}
    row = {"model": name, "images": batch, "size": data.pixels.shape[1:3], "dtype": dtype, "without": without}
    row["differences"] = {
        other: float(np.linalg.norm(one.scores - ours) / np.linalg.norm(ours))
        for other, one in prepared.items()
        if dtype == "float32" and one.scores is not None and one.scores is not ours
    }
    return [row | {"pass": pass_} | found for pass_, found in rows.items() if found["seconds"]]


@contextmanager
def started(names):
    """A process for each implementation."""
    with tempfile.TemporaryDirectory() as programs:
        processes = {name: Process(programs) for name in names}
        yield processes
        for process in processes.values():
            process.end()


def prepare(detector, processes, data, dtype):
    """The implementations that are prepared, and why some are missing. On a CPU they are prepared one by one."""
    prepared, without, futures = {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        detector.write(Path(folder))
        for name, process in processes.items():
            futures[name] = process.prepare(detector.implementations[name], Path(folder), data, dtype)
            if jax.default_backend() == "cpu":
                wait([futures[name]])
        for name, future in futures.items():
            try:
                prepared[name] = future.result()
            except Unavailable as reason:
                without[name] = str(reason)
            except Exception as error:  # such as that of an exporter; the others can still run
                without[name] = summary_of(error)
    return prepared, without


def taking_turns(processes, pass_, repeats):
    seconds = {name: [] for name in processes}
    for _ in range(repeats):
        for name, process in processes.items():
            seconds[name].append(process.turn(pass_))
    return {name: summary(values) for name, values in seconds.items()}


def tables(rows):
    head = ["model", "images", "type", "pass", "implementation", "ms", "jax_dcn / it", "ms on the GPU", "MiB"]
    lines, first, reasons = [head], [["model", "images", "type", "implementation", *FIRST_CELLS]], []
    for row in rows:
        begin = [row["model"], str(row["images"]), row["dtype"]]
        ours = row["seconds"]["jax_dcn"]["median"]
        for name, times in row["seconds"].items():
            middle, low, high = (digits(times[key] * 1e3) for key in ("median", "min", "max"))
            device = median([total(run) for run in row["kernels"].get(name, [])])
            held = row["bytes"][name] and row["bytes"][name] / 2**20
            cells = [row["pass"], name, f"{middle} ({low} to {high})", digits(ours / times["median"])]
            cells += ["-" if one is None else digits(one) for one in (device, held)]
            lines.append([*begin, *cells])
        for name, seconds in row.get("first step", {}).items():
            first.append([*begin, name, *(digits(seconds[key]) if key in seconds else "-" for key in FIRST_CELLS)])
        reasons += [f"{row['model']}, {row['dtype']}: {name} {why}" for name, why in row["without"].items()]
        reasons += [
            f"{row['model']}: the scores of {name} differ by {difference:.2%}"
            for name, difference in row["differences"].items()
            if not difference <= TOLERANCE
        ]
    yield from (paragraph(NOTE), markdown(lines))
    if len(first) > 1:
        yield from (paragraph(FIRST), markdown(first))
    if reasons:
        yield "\n".join(f"- {reason}" for reason in dict.fromkeys(reasons))


def main(arguments=None):
    made = parser("whole_models", __doc__)
    add = made.add_argument
    names = dict.fromkeys(name for one in DETECTORS.values() for name in one.implementations)
    add("--models", nargs="+", choices=DETECTORS, default=list(DETECTORS))
    add("--images", type=int, nargs="+", default=[1, 4], help="numbers of images in a batch")
    add("--side", type=int, help="height and width of the images in pixels, by default those of each model")
    add("--dtypes", nargs="+", choices=DTYPES, default=["float32"])
    add("--implementations", nargs="+", choices=names, default=list(names), metavar="NAME", help="besides jax_dcn")
    alone_help = "start each implementation after the one before has ended, where memory is too small for all"
    add("--alone", action="store_true", help=alone_help)
    add("--repeats", type=int, default=5)
    args = made.parse_args(arguments)
    chosen = {"jax_dcn", *args.implementations}
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the processes share the memory of a GPU
    about = {"implementations": "alone" if args.alone else "taking turns", "load average before": load()}
    results = {"machine": machine() | about, "rows": []}
    for name, dtype, batch in itertools.product(args.models, args.dtypes, args.images):
        results["rows"] += measure(name, batch, args.side, dtype, args.repeats, chosen, args.alone)
        write(args.out, results)


def write(folder, results):
    results["machine"]["load average after"] = load()
    name = f"{jax.default_backend()}-whole-models"
    write_json(folder / f"{name}.json", results)
    write_page(folder, name, "Whole detectors", [facts(results["machine"]), *tables(results["rows"])])


if __name__ == "__main__":
    sys.exit(main())
