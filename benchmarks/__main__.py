"""`python -m benchmarks`: each operator beside what one would use without it, in one run."""

import argparse
import json
import os
import platform
import subprocess
from datetime import date
from importlib.metadata import version
from pathlib import Path

import jax

from benchmarks import deform_conv, deform_psroi_pool

RESULTS = Path(__file__).parent / "results"
OPERATORS = {"deform_conv2d": deform_conv, "deform_psroi_pool": deform_psroi_pool}


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    shapes = [name for operator in OPERATORS.values() for name in operator.SHAPES]
    default = ["A", "B", "C", "D", "P1", "P2", "P3", "P4"]
    parser.add_argument("--shapes", nargs="+", choices=shapes, default=default)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file and the tables")
    args = parser.parse_args()

    report, sections = {"machine": machine()}, []
    sections.append(", ".join(f"{key} {value}" for key, value in report["machine"].items()))
    for title, operator in OPERATORS.items():
        names = [name for name in args.shapes if name in operator.SHAPES]
        rows = [operator.measure(name, dtype, args.repeats) for dtype in args.dtypes for name in names]
        if rows:
            report[title] = rows
            sections.append(f"## {title}\n\n{operator.table(rows)}")
    text = "\n\n".join(sections) + "\n"
    print(text)
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / f"{date.today()}-{jax.devices()[0].platform}"
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)


def machine():
    def commit():
        command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"

    return {
        "date": str(date.today()),
        "commit": commit(),
        "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}, {cpu_name()}, {cpu_count()} cores",
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax_dcn", "jax", "jaxlib")},
    }


def cpu_name():
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def cpu_count():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


if __name__ == "__main__":
    main()
