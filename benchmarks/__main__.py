"""`python -m benchmarks`: compares the operators with their baselines, and measures how their cost grows.

It writes the results to a folder: <date>-<platform>.json, the same as tables (.md), and plots (.png).
"""

import argparse
import math
import sys
import time
from datetime import date
from pathlib import Path

import jax

from benchmarks.measurements import growth, operators
from benchmarks.reports import growth as growth_tables
from benchmarks.reports import operators as operator_tables
from benchmarks.reports import report
from benchmarks.support.machine import load, machine

BENCHMARKS = {"operators": operators, "growth": growth}
TABLES = {"operators": operator_tables.tables, "growth": growth_tables.tables}
DTYPES = {"cpu": ["float32", "bfloat16"], "gpu": ["bfloat16", "float16", "float32"]}


def main(arguments=None):
    args = parse(arguments)
    if args.plot:
        from benchmarks.reports import plot  # imported before the work, because matplotlib may be missing
    end = time.monotonic() + (math.inf if args.seconds is None else args.seconds)
    stem = args.out / f"{date.today()}-{jax.default_backend()}"
    results = {"machine": machine() | {"load average before": load()}, "note": args.note}
    results |= {"limit": args.seconds, "not reached": []}
    chosen = {name: BENCHMARKS[name] for name in args.benchmarks}
    for name, benchmark in chosen.items():
        results[name] = []
        for label, task in benchmark.tasks(args):
            if time.monotonic() >= end:
                results["not reached"].append(label)
                continue
            start = time.monotonic()
            results[name] += task()
            print(f"{label}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
            report.write(results, TABLES, stem)  # after each task, so that a run that is stopped leaves its results
    results["machine"]["load average after"] = load()
    print(report.write(results, TABLES, stem))
    if args.plot:
        plot.draw(results, stem)
    return 1 if any(row.get("refused") for name in chosen for row in results[name]) else 0


def parse(arguments):
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "benchmarks", nargs="*", metavar="BENCHMARK", help=f"any of {', '.join(BENCHMARKS)}; by default all"
    )
    parser.add_argument("--shapes", nargs="+", choices=operators.shapes(), help="shapes for `operators`, in this order")
    parser.add_argument(
        "--dtypes", nargs="+", choices=DTYPES["gpu"], default=DTYPES.get(jax.default_backend(), DTYPES["cpu"])
    )
    names = operators.baselines()
    parser.add_argument(
        "--baselines", nargs="+", choices=names, default=names, metavar="NAME",
        help=f"which ones to compare with: {', '.join(names)}; by default all",
    )  # fmt: skip
    parser.add_argument("--repeats", type=int, default=15, help="how often each one is timed, unless it is slow")
    parser.add_argument("--seconds", type=float, help="time limit, after which no task is started")
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="output folder")
    parser.add_argument("--note", default="", help="a note printed above the tables")
    parser.add_argument("--no-plot", dest="plot", action="store_false", help="write no plots; works without matplotlib")
    args = parser.parse_args(arguments)
    args.benchmarks = args.benchmarks or list(BENCHMARKS)
    if unknown := set(args.benchmarks) - set(BENCHMARKS):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    return args


if __name__ == "__main__":
    sys.exit(main())
