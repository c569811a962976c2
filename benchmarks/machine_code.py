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
from benchmarks.reports.formatting import list_named, paragraph
from benchmarks.reports.gpu_numbers import of_architecture
from benchmarks.reports.kernel_costs import details, replace_tables, tables
from benchmarks.reports.report import RESULTS, page_text, write_json, write_text
from jax_dcn._primitive import extension

PERFORMANCE = RESULTS.parents[1] / "docs" / "performance.md"
COSTS = """Only the fused kernels and the sort have times: of the im2col path there are clocks, and the RoI poolings are
not counted. All times are estimated with waiting, from counts of eight thread blocks per launch, and assume the clocks
and rates in benchmarks/counting/devices.py, which says which of them are published. Issue, L1 and tensor are clocks of
an SM per K step, and so are those with waiting, for one resident thread block and for all; those of the main loop are
issued instructions per K step. The last column says what would bind without waiting. Offsets have a standard deviation
of 2 pixels. docs/performance.md says what all this means."""
IM2COL = """Clocks of an SM per 128 bytes of columns, without the sort, and with waiting in the last column. The
cotangents of offset and mask include the columns for the gradient of the weight. Offsets have a standard deviation of 2
pixels, and the batch is 1."""
GEFORCE = """The tensor column of RTX GPUs is for GeForce cards. Data-centre and workstation GPUs of the same
architecture may sum in float32 at the full rate."""
SHOWN = "sm_90"  # the architecture whose kernels the page lists
STATIC = f"""Read from the built module, for {SHOWN}; `python -m benchmarks.machine_code --registers` lists all
architectures. Registers per thread, warps that the registers of an SM have room for, bytes of
stack and local memory per thread (0: nothing is spilled), bytes of static shared memory per block, and the number of
instructions of each kind. Kernels with a number of channels access 16 bytes at a time, or one element if 16 bytes do
not divide the channels."""


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


def page(results):
    head = f"{results['date']}, {results['compiler']}. No GPU was needed, and nothing here was measured on one."
    size = f"The module with the code for all of these architectures takes {results['module bytes'] / 1e6:.2f} MB."
    sections = [
        *map(paragraph, (head, size)),
        f"## Costs of the fused kernels in {results['dtype']}",
        *map(paragraph, (COSTS, GEFORCE)),
        list_named(kernel_costs.SHAPES),
        *details(results["launches"]),
        f"## Clocks of the im2col path in {results['dtype']}",
        paragraph(IM2COL),
        static_table(map(im2col_row, of_architecture(SHOWN, results["im2col launches"]))),
        "## Registers and instructions",
        paragraph(STATIC),
        static_table(results["kernels"]),
    ]
    return page_text("The machine code of the CUDA kernels", sections)


def static_table(rows):
    head, *_ = rows = list(rows)
    lines = [list(head), ["---"] * len(head), *(row.values() for row in rows)]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def im2col_row(launch):
    clocks = launch["clocks per 128 bytes of columns"]
    return {"shape": launch["shape"], "kernel": f"`{launch['kernel']}`"} | clocks


def static_row(kernel):
    """What the page shows of a kernel, by column."""
    row = {"source": kernel.source, "kernel": f"`{kernel.name}`", "registers": kernel.registers}
    row |= {
        "resident warps": f"{kernel.resident_warps} of {machine_code.WARPS}",
        "stack, local": f"{kernel.stack}, {kernel.local}",
    }
    row["static shared"] = kernel.shared
    for column, kind in (("loads by bytes", "global loads"), ("stores by bytes", "global stores")):
        row[column] = ", ".join(f"{n} of {width}" for width, n in kernel.widths(kind).items()) or "none"
    for column, kind in (("asynchronous copies",) * 2, ("mma instructions", "matrix instructions")):
        row[column] = ", ".join(f"{n} {opcode}" for opcode, n in kernel.accesses(kind).items()) or "none"
    return row


if __name__ == "__main__":
    main()
