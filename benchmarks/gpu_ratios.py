"""`python -m benchmarks.gpu_ratios`: the operators beside cuDNN, torchvision and PyTorch on one GPU, in one process.

Each row has two times: that of the GPU alone, the sum of a call's kernels in jax's profiler; and that of calls that are
queued one after the other, which is longer where kernels take longer to launch than to run.
"""

import argparse
import os
import sys
from pathlib import Path

from benchmarks import boxes, operators
from benchmarks.baselines import Unavailable
from benchmarks.measurements.deform_conv import XLA
from benchmarks.measurements.measure import measure
from benchmarks.measurements.sizes import FEW, small
from benchmarks.measurements.timing import interleaved
from benchmarks.measurements.trace import median, total, traced
from benchmarks.reports.gpu_check import ratios_table
from benchmarks.reports.report import append_row
from benchmarks.support.machine import device_row

# Shape, type and baselines; the most important first: what is not reached is cut off.
CASES = (
    ("A16", "bfloat16", (XLA, "torchvision")),
    ("M3", "float32", ("PyTorch",)),
    ("M3", "bfloat16", ()),
    ("R2", "bfloat16", ("torchvision",)),
    ("S1", "float32", ("PyTorch",)),
    ("B16", "bfloat16", (XLA, "torchvision")),
    ("C16", "bfloat16", (XLA, "torchvision")),
    ("M2", "float32", ("PyTorch",)),
    ("M3", "float16", ()),
    ("A", "bfloat16", (XLA, "torchvision", "reference")),
)
BOXES = boxes.Shape(10_000, 80, 1000)
REPEATS, RUNS = 5, 5
XLA_FLAGS = "--xla_gpu_enable_command_buffer="  # the profiler sees no kernels in CUDA graphs


def rows(is_small):
    for name, dtype, baselines in CASES[: FEW if is_small else None]:
        operator = next(one for one in operators.OPERATORS.values() if name in one.shapes)
        shape = small(operator.shapes[name]) if is_small else operator.shapes[name]
        compared = {key: one for key, one in operator.implementations.items() if key in ("jax_dcn", *baselines)}
        about = {"case": name, "shape": f"{operator.name}: {shape}", "dtype": dtype}
        for row in measure(operator.problem(shape, dtype), compared, REPEATS, with_device_time):
            yield about | row
    shape = BOXES._replace(boxes=100, outputs=10) if is_small else BOXES
    about = {"case": "nms", "shape": f"nms: {shape}", "dtype": "float32", "pass": "forward"}
    try:
        calls = boxes.calls(shape)
    except Unavailable as reason:
        yield about | {"without": {"torchvision": str(reason)}}
    else:
        yield about | with_device_time(calls, REPEATS)


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
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {XLA_FLAGS}"  # read when jax first uses a device
    append_row(args.out, device_row())
    found = []
    for row in rows(args.small):
        found.append(row)
        append_row(args.out, row)
    print(ratios_table(found))
    refused = [name_and_reason for row in found for name_and_reason in row.get("refused", {}).items()]
    return 1 if any(name == "jax_dcn" or reason.startswith("differs") for name, reason in refused) else 0


if __name__ == "__main__":
    sys.exit(main())
