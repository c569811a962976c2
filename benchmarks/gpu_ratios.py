"""`python -m benchmarks.gpu_ratios`: the operators beside cuDNN, torchvision and PyTorch on one GPU, in one process.

Each row has two times: that of the GPU alone, the sum of a call's kernels in jax's profiler; and that of calls that are
queued one after the other, which is longer where kernels take longer to launch than to run. The memory is that of
results and temporary arrays.
"""

import argparse
import sys

from benchmarks.baselines import Unavailable, summary_of
from benchmarks.measurements import nms
from benchmarks.measurements.deform_conv import XLA
from benchmarks.measurements.measure import measure
from benchmarks.measurements.sizes import small
from benchmarks.measurements.timing import interleaved
from benchmarks.measurements.trace import median, total, traced
from benchmarks.operators import operator_of
from benchmarks.reports.formatting import digits, list_named, table_head, table_line
from benchmarks.support.machine import add_xla_flags

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
    ("M1", "float32", ("PyTorch",)),
    ("M1", "bfloat16", ()),
    ("M3", "float16", ()),
    ("A", "bfloat16", (XLA, "torchvision", "reference")),
    ("B", "bfloat16", (XLA,)),
    ("C", "bfloat16", (XLA,)),
)
BOXES = nms.Shape(10_000, 80, 1000)
REPEATS, RUNS = 5, 5
HEAD = ("case", "type", "pass", "implementation", "µs on the GPU", "/ jax_dcn", "µs queued", "/ jax_dcn", "MiB")
PUBLISHED = """M3 on an H100, by https://github.com/roulbac/msda-triton at 7fd0886: the forward and the backward
of its Triton kernels take 12 and 92 µs in float32, and 8 and 56 µs in 16 bits. mmcv's CUDA kernels take 2.17 and 1.33
times as long in float32, and 4.30 and 4.50 times in float16. Both have atomics. Their locations and weights have the
type of the data; those of jax_dcn are float32."""
XLA_FLAGS = "--xla_gpu_enable_command_buffer="  # the profiler sees no kernels in CUDA graphs


def rows_of(name, dtype, baselines, is_small):
    """The rows of a case; if it fails, one with its error."""
    about = {"case": name, "dtype": dtype, "pass": "all"}
    try:
        if name == "nms":
            shape = BOXES._replace(boxes=100, outputs=10) if is_small else BOXES
            return [about | {"pass": "forward", "bytes": {}} | with_device_time(nms.calls(shape), REPEATS)]
        operator = operator_of(name)
        shape = small(operator.shapes[name]) if is_small else operator.shapes[name]
        compared = operator.compared_with(baselines)
        return [about | row for row in measure(operator.problem(shape, dtype), compared, REPEATS, with_device_time)]
    except Unavailable as reason:
        return [about | {"without": dict.fromkeys(baselines, str(reason))}]
    except Exception as error:  # the other cases can still run
        return [about | {"refused": {"jax_dcn": summary_of(error)}}]


def with_device_time(calls, repeats):
    """The times of calls, by name."""
    runs = traced(calls, RUNS)
    device_times = {name: median([total(run) for run in of_call]) for name, of_call in runs.items()}
    return {"seconds": interleaved(calls, repeats), "device milliseconds": device_times}


def lines(row):
    """The lines of the table: one for each implementation, and for each reason why there is none."""
    begin = [row["case"], row["dtype"], row["pass"]]
    device, queued = row.get("device milliseconds", {}), row.get("seconds", {})
    for name, seconds in queued.items():
        times = (device[name], device.get("jax_dcn")), (seconds["median"] * 1e3, queued["jax_dcn"]["median"] * 1e3)
        held = row["bytes"].get(name)
        memory = digits(held / 2**20) if held else "-"
        yield [*begin, name, *(cell for own, ours in times for cell in cells(own, ours)), memory]
    for key in ("notes", "without", "refused"):
        for name, reason in row.get(key, {}).items():
            yield [*begin, name, f"{key}: {reason}", "", "", "", ""]


def cells(milliseconds, ours):
    """The time in microseconds, and as a multiple of jax_dcn's."""
    if milliseconds is None:
        return "-", "-"
    return digits(milliseconds * 1e3), digits(milliseconds / ours) if ours else "-"


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_ratios", description=__doc__)
    parser.add_argument("--small", action="store_true", help="few cases with few pixels, to try this program")
    names = list(dict.fromkeys(name for name, *_ in CASES))
    parser.add_argument("--cases", nargs="+", choices=names, default=names)
    args = parser.parse_args(arguments)
    add_xla_flags(XLA_FLAGS)
    cases = [case for case in CASES if case[0] in args.cases]
    shapes = {name: BOXES if name == "nms" else operator_of(name).shapes[name] for name, *_ in cases}
    print(f"{list_named(shapes)}\n\n{PUBLISHED}\n\n{table_head(HEAD)}")
    refused = []
    for case in cases[: 6 if args.small else None]:
        for row in rows_of(*case, args.small):
            refused += row.get("refused", {}).items()
            for line in lines(row):
                print(table_line(line), flush=True)
    return 1 if any(name == "jax_dcn" or reason.startswith("differs") for name, reason in refused) else 0


if __name__ == "__main__":
    sys.exit(main())
