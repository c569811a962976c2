"""`python -m benchmarks.derivatives`: time and memory of forward mode and of second derivatives."""

import argparse
from datetime import date
from pathlib import Path

import jax

from benchmarks.measurements.derivatives import SHAPES, memory, times
from benchmarks.readers.machine import load, machine
from benchmarks.reports.derivatives import sections
from benchmarks.reports.formatting import paragraph
from benchmarks.reports.report import RESULTS, write_json, write_text


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.derivatives", description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="how often each program is timed")
    parser.add_argument("--out", type=Path, default=RESULTS, help="output folder")
    args = parser.parse_args(arguments)
    about = machine() | {"load average before": load()}
    results = {
        "memory": {name: memory(shape) for name, shape in SHAPES.items()},
        "times": {name: times(shape, args.repeats) for name, shape in SHAPES.items()},
    }
    about["load average after"] = load()
    facts = paragraph(", ".join(f"{key} {value}" for key, value in about.items() if value is not None))
    text = "\n\n".join(["# Derivatives of the deformable convolution", facts, *sections(**results)]) + "\n"
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / f"{date.today()}-{jax.default_backend()}-derivatives"
    write_json(stem.with_suffix(".json"), {"machine": about, **results})
    write_text(stem.with_suffix(".md"), text)
    print(text)


if __name__ == "__main__":
    main()
