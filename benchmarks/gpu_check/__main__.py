"""`make gpu-check`: builds for this machine's GPU, tests and measures there, and writes each step's results at once.

It takes at most 9 minutes, uses the Python that runs it, and needs no network. The results are a page and a JSON file.
`--rehearse` runs the same steps on a CPU, with small problems, to try them before a GPU is at hand.
"""

import argparse
import sys
import time
from datetime import date
from pathlib import Path

from benchmarks.gpu_check.steps import STEPS, Context
from benchmarks.reports.gpu_check import page
from benchmarks.reports.report import RESULTS, write_json, write_text
from benchmarks.support import gpu
from benchmarks.support.sources import commit

NO_GPU = {"name": "no GPU", "compute capability": "9.0"}


def main(arguments=None):
    args = parse(arguments)
    begin = time.perf_counter()
    identity = gpu.identity() or (NO_GPU if args.rehearse else None)
    if identity is None:
        print("Skipped: no NVIDIA GPU here (nvidia-smi finds none).")
        return 0

    steps = {name: step for name, step in STEPS.items() if name in (args.only or STEPS)}
    report = {"date": str(date.today()), "commit": commit(), "gpu": identity, "rehearsed": args.rehearse, "steps": {}}
    stem = new_stem(args.out, identity["name"])
    left, seconds = dict(steps), args.minutes * 60
    for name, step in steps.items():
        del left[name]
        # What earlier steps left of their time is for this one and the later ones, whose shares are kept.
        spent = (time.perf_counter() - begin) / seconds
        limit = seconds * (1 - spent - sum(later.share for later in left.values()))
        report["steps"][name] = result = run_step(step, Context(identity, limit, args.rehearse))
        write_json(stem.with_suffix(".json"), report)
        write_text(stem.with_suffix(".md"), page(report))
        if name == "build" and not result["ok"]:
            break
    print(page(report))
    return 0 if all(report["steps"].get(name, {}).get("ok") for name in steps) else 1


def run_step(step, context):
    begin = time.perf_counter()
    try:
        result = step.run(context)
    except Exception as error:  # the later steps can still run
        result = {"ok": False, "why": f"{type(error).__name__}: {error}"}
    output = result.pop("output", "")
    if not (result["ok"] or result.get("why")):
        result["why"] = f"The output ended with:\n\n```text\n{output[-1500:].strip()}\n```"
    return {**result, "seconds": round(time.perf_counter() - begin)}


def new_stem(folder, name):
    """The path of the report, without its suffix. Earlier reports are kept."""
    words = "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
    stem = folder / "-".join([str(date.today()), "gpu", *words])
    numbered = [stem, *(stem.with_name(f"{stem.name}-{number}") for number in range(2, 100))]
    return next(path for path in numbered if not path.with_suffix(".json").exists())


def parse(arguments):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--only", type=names, metavar="STEP,…", help=f"only these steps, of {', '.join(STEPS)}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the two files")
    parser.add_argument("--minutes", type=float, default=9, help="time limit, which the steps share")
    parser.add_argument("--rehearse", action="store_true", help="run on the CPU, with small problems")
    return parser.parse_args(arguments)


def names(text):
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in STEPS]:
        raise argparse.ArgumentTypeError(f"no such step: {', '.join(unknown)}; there are {', '.join(STEPS)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
