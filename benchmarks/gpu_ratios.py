"""`python -m benchmarks.gpu_ratios`: the operators beside cuDNN, torchvision and PyTorch on one GPU, in one process.

Each row has two times: that of the GPU alone, the sum of a call's kernels in jax's profiler; and that of calls that are
queued one after the other, which is longer where kernels take longer to launch than to run.
"""

import argparse
import sys
from pathlib import Path

from benchmarks import boxes
from benchmarks.baselines import Unavailable, summary_of
from benchmarks.measurements.deform_conv import XLA
from benchmarks.measurements.measure import measure
from benchmarks.measurements.sizes import small
from benchmarks.measurements.timing import interleaved
from benchmarks.measurements.trace import median, total, traced
from benchmarks.operators import operator_of
from benchmarks.reports.gpu_check import ratios_table
from benchmarks.reports.report import append_row
from benchmarks.support.machine import add_xla_flags, device_row

# Shape, type and baselines; the most important first: what is not reached is cut off. With float16, torchvision would
# round the regions of roi_align to half a pixel.
CASES = (
    ("A16", "bfloat16", (XLA, "torchvision")),
    ("M3", "float32", ("PyTorch",)),
    ("M3", "bfloat16", ()),
    ("R2", "float32", ("torchvision",)),
    ("S1", "float32", ("PyTorch",)),
    ("nms", "float32", ("torchvision",)),
    ("B16", "bfloat16", (XLA, "torchvision")),
    ("C16", "bfloat16", (XLA, "torchvision")),
    ("M2", "float32", ("PyTorch",)),
    ("M3", "float16", ()),
    ("A", "bfloat16", (XLA, "torchvision", "reference")),
)
BOXES = boxes.Shape(10_000, 80, 1000)
REPEATS, RUNS = 5, 5
XLA_FLAGS = "--xla_gpu_enable_command_buffer="  # the profiler sees no kernels in CUDA graphs


def rows_of(name, dtype, baselines, is_small):
    """The rows of a case; if it fails, one with its error."""
    about = {"case": name, "dtype": dtype, "shape": name, "pass": "all"}
    try:
        if name == "nms":
            shape = BOXES._replace(boxes=100, outputs=10) if is_small else BOXES
            about |= {"shape": f"nms: {shape}", "pass": "forward"}
            return [about | with_device_time(boxes.calls(shape), REPEATS)]
        operator = operator_of(name)
        shape = small(operator.shapes[name]) if is_small else operator.shapes[name]
        problem = operator.problem(shape, dtype)
        measured = measure(problem, operator.compared_with(baselines), REPEATS, with_device_time)
        return [about | {"shape": f"{operator.name}: {shape}"} | row for row in measured]
    except Unavailable as reason:
        return [about | {"without": dict.fromkeys(baselines, str(reason))}]
    except Exception as error:  # the other cases can still run
        return [about | {"refused": {"jax_dcn": summary_of(error)}}]


def with_device_time(calls, repeats):
    """The times of calls, by name."""
    runs = traced(calls, RUNS)
    device_times = {name: median([total(run) for run in of_call]) for name, of_call in runs.items()}
    return {"seconds": interleaved(calls, repeats), "device milliseconds": device_times}


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_ratios", description=__doc__)
    parser.add_argument("--out", type=Path, help="file to which each row is added as a line of JSON")
    parser.add_argument("--small", action="store_true", help="few cases with few pixels, to try this program")
    args = parser.parse_args(arguments)
    add_xla_flags(XLA_FLAGS)
    append_row(args.out, device_row())
    found = []
    for case in CASES[: 6 if args.small else None]:
        for row in rows_of(*case, args.small):
            found.append(row)
            append_row(args.out, row)
    print(ratios_table(found))
    refused = [name_and_reason for row in found for name_and_reason in row.get("refused", {}).items()]
    return 1 if any(name == "jax_dcn" or reason.startswith("differs") for name, reason in refused) else 0


if __name__ == "__main__":
    sys.exit(main())
