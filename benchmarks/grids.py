"""`python -m benchmarks.grids`: how many thread blocks each kernel of an operator and of its gradients has.

The package's launchers choose the grids, for an H100 or H200. The kernels themselves do not run.
"""

from datetime import date

import jax

from benchmarks.kernel_times import results
from benchmarks.lowering import executed_ptx
from benchmarks.measurements.sizes import with_batch
from benchmarks.operators import operator_of
from benchmarks.reports.formatting import list_named, markdown, paragraph
from benchmarks.reports.report import parser, write_page
from benchmarks.support.cuda_tools import absent, read, short_name

TITLE = "The grids of the CUDA kernels"
SHAPES = (*"ABCDEFGH", "M1", "M2", "M3", "W1", "W2", "W3", "R1", "R2", "S1", "S2", "S3", "S4")
BATCHES = (1, 16)
CAPABILITY, SMS, SM_WARPS, WARP = 90, 132, 64, 32  # of an H100 or H200; an SM has room for SM_WARPS warps


def missing():
    """Why nothing can be launched on this machine, or None."""
    return executed_ptx.missing() or absent("c++filt")


def rows():
    for name in SHAPES:
        operator = operator_of(name)
        for batch in BATCHES:
            problem = operator.problem(with_batch(operator.shapes[name], batch), "bfloat16")
            for computation, varied in (("forward", ()), ("gradients", problem.varied)):
                for kernel, records in launches(operator.function, problem, varied).items():
                    yield name, batch, computation, kernel, *row(records)


def launches(function, problem, varied):
    """The records of the launches by kernel."""

    def compute(operands, cotangent):
        return results(function, varied, problem.options, operands, cotangent)

    records = executed_ptx.launches(compute, problem.operands, problem.cotangent, compute_capability=CAPABILITY)
    names = read("c++filt", *(record["kernel"] for record in records)).splitlines()
    found = {}
    for name, record in zip(map(short_name, names), records, strict=True):
        found.setdefault(name, []).append(record)
    return found


def row(records):
    grids, threads = sorted(record["blocks"] for record in records), records[0]["threads"]
    warps = grids[0] * threads / WARP / SMS
    text = f"{warps:.2g}" if warps < 10 else f"{warps:,.0f}"
    blocks = " to ".join(f"{grid:,}" for grid in dict.fromkeys((grids[0], grids[-1])))
    return len(grids), blocks, threads, f"**{text}**" if warps < SM_WARPS else text


def sections(day):
    yield paragraph(
        f"{day}, from the package's launchers, for the {SMS} SMs of an H100 or H200, and bfloat16 data. Nothing was "
        "timed. Warps per SM are those of a kernel's smallest grid, bold where they are fewer than the "
        f"{SM_WARPS} that an SM has room for."
    )
    yield list_named({name: operator_of(name).shapes[name] for name in SHAPES})
    head = ["shape", "batch", "computation", "kernel", "launches", "blocks", "threads", "warps per SM"]
    yield markdown([head, *([str(cell) for cell in cells] for cells in rows())])


def main(arguments=None):
    args = parser("grids", __doc__).parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    write_page(args.out, "grids", TITLE, sections(date.today()))


if __name__ == "__main__":
    main()
