"""`python -m benchmarks.machine_code`: the machine code of the CUDA kernels, and estimates of its cost on GPUs.

The registers and instructions are read from the built module. For the costs, the kernels' PTX is executed on the CPU
for the benchmark's shapes, which takes some minutes. Writes benchmarks/results/<date>-machine-code.json and .md, and
replaces the numbers of jax_dcn/_operators/deform_conv/gpu_estimate.py and the tables of docs/performance.md.
"""

import argparse
import json
from datetime import date
from pathlib import Path

from benchmarks.counting import machine_code
from benchmarks.counting.estimates import newest
from benchmarks.measurements import kernel_costs
from benchmarks.reports import gpu_numbers
from benchmarks.reports.kernel_costs import replace_tables, tables
from benchmarks.reports.machine_code import SHOWN, page, static_row, static_table
from benchmarks.reports.report import RESULTS, write_json, write_text
from jax_dcn._primitive import extension

PERFORMANCE = RESULTS.parents[1] / "docs" / "performance.md"


def main(arguments=None, results=RESULTS, performance=PERFORMANCE, module=gpu_numbers.MODULE):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.machine_code", description=__doc__)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--registers", action="store_true", help="only print registers and instructions; write nothing")
    kinds.add_argument("--render", action="store_true", help="only write the tables of the newest JSON file again")
    args = parser.parse_args(arguments)
    if args.render:
        path = newest(results)
        write_pages(json.loads(path.read_text()), path, performance, module)
        return
    if reason := machine_code.missing():
        raise SystemExit(reason)
    if args.registers:
        tables = {
            name: static_table(map(static_row, machine_code.kernels(name))) for name in machine_code.architectures()
        }
        print("\n\n".join(f"### {name}\n\n{table}" for name, table in tables.items()))
        return
    if reason := kernel_costs.missing():
        raise SystemExit(f"There are no costs, because PTX cannot be executed: {reason}. --registers needs no PTX.")
    if SHOWN not in machine_code.architectures():
        raise SystemExit(f"jax_dcn was built without machine code for {SHOWN}, which the page lists.")
    path = results / f"{date.today()}-machine-code.json"
    report = measure()
    write_json(path, report)
    write_pages(report, path, performance, module)
    print(path.with_suffix(".md").read_text())


def measure():
    module = extension.modules["cuda"]
    kernels = {name: machine_code.kernels(name) for name in machine_code.architectures()}
    report = {"date": str(date.today()), "compiler": module.compiler, "dtype": kernel_costs.DTYPE}
    report["machine code"] = {name: machine_code.digest(found) for name, found in kernels.items()}
    report["module bytes"] = Path(module.__file__).stat().st_size
    report["launches"] = list(kernel_costs.measure())
    report["other launches"] = list(kernel_costs.measure(kernel_costs.OTHER_SHAPES))
    report["im2col launches"] = list(kernel_costs.measure_im2col())
    report["kernels"] = [static_row(kernel) for kernel in kernels[SHOWN]]
    return report


def write_pages(report, path, performance, module):
    write_text(path.with_suffix(".md"), page(report))
    write_text(module, gpu_numbers.replaced(module.read_text(), report))
    write_text(performance, replace_tables(performance.read_text(), tables(report["launches"])))


if __name__ == "__main__":
    main()
