"""`python -m benchmarks.smoke`: compares each kernel with the reference, on small arrays, in less than a minute."""

import argparse
import os
import sys
from pathlib import Path

import jax

from benchmarks.measurements import smoke
from benchmarks.reports.report import write_json
from benchmarks.reports.smoke import sections


def main(arguments=None, platform=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.smoke", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file, written after each case")
    args = parser.parse_args(arguments)
    platform = platform or {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    left = [" ".join(case) for case in smoke.cases(platform)]
    results = {"calls": smoke.custom_calls_of(platform), "rows": [], "not reached": left}
    for _, rows in smoke.run(platform):
        results["rows"] += rows
        del left[0]
        if args.out:
            write_json(args.out, results)
    print("\n\n".join(sections(results)))
    return 0 if is_ok(results) else 1


def is_ok(results):
    checked = {row["call"] for row in results["rows"] if row["ok"]}
    return checked >= set(results["calls"]) and all(row["ok"] for row in results["rows"]) and not results["not reached"]


if __name__ == "__main__":
    # Autotuning takes longer than it saves in programs that run once. XLA reads this when a device is first used.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0"
    sys.exit(main())
