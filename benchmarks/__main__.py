"""`python -m benchmarks`: compares the operators with their baselines.

It writes the results to a folder: <date>-<platform>.json, and the same as tables (.md).
"""

import sys
import time
from datetime import date

import jax

from benchmarks import operators
from benchmarks.reports.report import facts, parser, write_json, write_text
from benchmarks.support.machine import load, machine

DTYPES = {"cpu": ["float32", "bfloat16"], "gpu": ["bfloat16", "float16", "float32"]}


def main(arguments=None):
    args = parse(arguments)
    stem = args.out / f"{date.today()}-{jax.default_backend()}"
    results = {"machine": machine() | {"load average before": load()}, "operators": []}
    for label, task in operators.tasks(args):
        start = time.monotonic()
        results["operators"] += task()
        print(f"{label}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
        write(results, stem)  # after each task, so that a run that is stopped leaves its results
    results["machine"]["load average after"] = load()
    print(write(results, stem))
    return 1 if any(row.get("refused") for row in results["operators"]) else 0


def write(results, stem):
    """Writes the results to `stem`.json and their tables to `stem`.md, and returns the text of the tables."""
    text = "\n\n".join(sections(results)) + "\n"
    write_json(stem.with_suffix(".json"), results)
    write_text(stem.with_suffix(".md"), text)
    return text


def sections(results):
    yield facts(results["machine"])
    yield from operators.tables(results["operators"])


def parse(arguments):
    made = parser("", __doc__)
    add = made.add_argument
    add("--shapes", nargs="+", choices=operators.shapes(), help="which shapes, in this order; by default all")
    add("--dtypes", nargs="+", choices=DTYPES["gpu"], default=DTYPES.get(jax.default_backend(), DTYPES["cpu"]))
    names = operators.baselines()
    shown = f"which ones to compare with: {', '.join(names)}; by default all"
    add("--baselines", nargs="+", choices=names, default=names, metavar="NAME", help=shown)
    add("--repeats", type=int, default=15, help="how often each one is timed, unless it is slow")
    return made.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
