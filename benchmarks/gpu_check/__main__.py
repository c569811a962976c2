"""`make gpu-check`: builds for this machine's GPU, tests and measures there, and writes each step's results at once.

It takes at most 9 minutes. A second run continues: it skips steps whose results for these sources, this GPU and its
driver are in the report. It uses the Python that runs it and downloads nothing, so that it works without a network.
"""

import argparse
import sys
import time
from pathlib import Path

from benchmarks.gpu_check.record import Record
from benchmarks.gpu_check.steps import STEPS, Context
from benchmarks.reports.report import RESULTS
from benchmarks.support import gpu

MINUTES = 9


def main(arguments=None):
    args = parse(arguments)
    begin = time.perf_counter()
    identity = gpu.identity()
    if identity is None:
        print("Skipped: no NVIDIA GPU here (nvidia-smi finds none).")
        return 0

    args.out.mkdir(parents=True, exist_ok=True)
    record = Record.open(args.out, identity)
    left = {name: STEPS[name] for name in steps_to_run(args, record)}
    while left:
        name, step = next(iter(left.items()))
        del left[name]
        # What earlier steps left of their time is for this one and the later ones; the shares of those are kept.
        limit = MINUTES * 60 - (time.perf_counter() - begin) - sum(later.seconds for later in left.values())
        result = run_step(step, Context(identity, limit, args.out))
        record.add(name, result)
        if name == "build" and not result["ok"]:
            break
    print(record.page())
    return 0 if all(record.is_ok(name) for name in args.only or STEPS) else 1


def run_step(step, context):
    begin = time.perf_counter()
    try:
        result = step.run(context)
    except Exception as error:  # the later steps can still run
        result = {"ok": False, "why": f"{type(error).__name__}: {error}"}
    return {"seconds": round(time.perf_counter() - begin), **result}


def steps_to_run(args, record):
    if args.only:
        return [name for name in STEPS if name in args.only]
    # The results of a build may be gone although the report says that it passed; if they are not, it takes seconds.
    return [name for name in STEPS if name == "build" or args.again or not record.is_done(name)]


def parse(arguments):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--only", type=steps, metavar="STEP,…", help=f"only these steps, of {', '.join(STEPS)}")
    parser.add_argument("--again", action="store_true", help="also run steps whose results are in the report")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file, the table and the plots")
    return parser.parse_args(arguments)


def steps(text):
    names = text.split(",")
    if unknown := [name for name in names if name not in STEPS]:
        raise argparse.ArgumentTypeError(f"no such step: {', '.join(unknown)}; there are {', '.join(STEPS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
