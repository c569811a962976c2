"""`python -m benchmarks.kernel_times`: the time of each computation of the convolution on a GPU, on either path."""

import argparse
import sys
from pathlib import Path

import jax

from benchmarks.measurements import kernel_times
from benchmarks.reports.kernel_times import measured_table
from benchmarks.reports.report import write_json


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_times", description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=kernel_times.SHAPES, default=kernel_times.SHAPES)
    parser.add_argument("--out", type=Path, help="JSON file, written after each shape")
    parser.add_argument("--once", action="store_true", help="only run each call once, under a profiler such as ncu")
    args = parser.parse_args(arguments)
    kernel_times.set_flags()
    chosen = kernel_times.shapes(args.shapes)
    if args.once:
        for shape in chosen.values():
            kernel_times.run_once(shape)
        return 0
    results = {"device": jax.devices()[0].device_kind, "rows": [], "not reached": list(chosen)}
    for name, shape in chosen.items():
        results["rows"] += kernel_times.measure(name, shape)
        results["not reached"].remove(name)
        if args.out:
            write_json(args.out, results)
    print(measured_table(results["rows"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
