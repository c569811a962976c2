"""`python -m benchmarks.grids`: how many thread blocks each kernel of an operator and of its gradients has.

The package's launchers choose the grids, for an H100 or H200. The kernels themselves do not run.
"""

from datetime import date

import jax

from benchmarks.counting import device_code
from benchmarks.counting.devices import DEVICES
from benchmarks.kernel_times import results
from benchmarks.lowering import executed_ptx
from benchmarks.measurements.kernel_costs import assembled, launches_on, residency
from benchmarks.measurements.sizes import with_batch
from benchmarks.operators import operator_of
from benchmarks.reports.formatting import list_named, markdown, paragraph
from benchmarks.reports.report import parser, write_page

TITLE = "The grids of the CUDA kernels"
SHAPES = (*"ABCDEFGH", "M1", "M2", "M3", "W1", "W2", "W3", "R1", "R2", "S1", "S2", "S3", "S4")
BATCHES = (1, 16)
DEVICE = DEVICES["sm_90"]
FEW = 2  # waves


def rows():
    functions = {name: found for source in executed_ptx.KERNELS for name, found in assembled(source, "sm_90").items()}
    for name in SHAPES:
        operator = operator_of(name)
        for batch in BATCHES:
            problem = operator.problem(with_batch(operator.shapes[name], batch), "bfloat16")
            for computation, varied in (("forward", ()), ("gradients", problem.varied)):
                for kernel, records in launches(operator.function, problem, varied).items():
                    yield name, batch, computation, *row(functions[kernel], records)


def launches(function, problem, varied):
    """The records of the launches by kernel."""

    def compute(operands, cotangent):
        return results(function, varied, problem.options, operands, cotangent)

    found = {}
    for record in launches_on(DEVICE, compute, problem.operands, problem.cotangent, runs_blocks=0):
        found.setdefault(device_code.linker_name(record["kernel"]), []).append(record)
    return found


def row(function, records):
    grids = sorted(record["grid"] for record in records)
    resident = residency(function, records[0], DEVICE).blocks
    waves = grids[0] / (resident * DEVICE.sms)
    text = f"{waves:.2g}" if waves < 10 else f"{waves:,.0f}"
    blocks = " to ".join(f"{grid:,}" for grid in dict.fromkeys((grids[0], grids[-1])))
    cells = function.name, len(grids), blocks, records[0]["threads"], resident
    return *cells, f"**{text}**" if waves < FEW else text


def sections(day):
    yield paragraph(
        f"{day}, from the package's launchers, for the {DEVICE.sms} SMs of an H100 or H200, and bfloat16 data. Nothing "
        "was timed. A wave is as many thread blocks as all SMs can hold at once, by their registers and shared memory. "
        f"The waves are those of a kernel's smallest grid, bold where they are fewer than {FEW}."
    )
    yield list_named({name: operator_of(name).shapes[name] for name in SHAPES})
    head = ["shape", "batch", "computation", "kernel", "launches", "blocks", "threads", "blocks per SM", "waves"]
    yield markdown([head, *([str(cell) for cell in cells] for cells in rows())])


def main(arguments=None):
    args = parser("grids", __doc__).parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    write_page(args.out, "grids", TITLE, sections(date.today()))


if __name__ == "__main__":
    main()
