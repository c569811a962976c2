"""`python -m benchmarks.cpu_tasks`: how well the fused CPU kernels would occupy up to 64 threads, simulated.

Two threads are measured too. Writes benchmarks/results/<date>-cpu-tasks.md.
"""

import argparse
from datetime import date
from pathlib import Path

from benchmarks.measurements.cpu_tasks import measure
from benchmarks.readers.machine import machine
from benchmarks.reports.cpu_tasks import sections
from benchmarks.reports.formatting import paragraph
from benchmarks.reports.report import RESULTS, write_text


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_tasks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often the processes take turns; 0: only simulate")
    parser.add_argument("--out", type=Path, default=RESULTS, help="output folder")
    args = parser.parse_args(arguments)
    facts = paragraph(", ".join(f"{key} {value}" for key, value in machine().items()))
    measured = measure(args.rounds) if args.rounds else {}
    text = "\n\n".join(["# Threads of the fused CPU kernels", facts, *sections(measured)]) + "\n"
    args.out.mkdir(parents=True, exist_ok=True)
    write_text(args.out / f"{date.today()}-cpu-tasks.md", text)
    print(text)


if __name__ == "__main__":
    main()
