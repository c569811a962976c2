"""The page about the machine code of the CUDA kernels."""

from benchmarks.counting.machine_code import WARPS
from benchmarks.measurements.kernel_costs import SHAPES
from benchmarks.reports.formatting import paragraph
from benchmarks.reports.kernel_costs import details

COSTS = """Only the fused kernels and the sort have costs: those of the im2col path and of the RoI poolings are not
counted. All times are estimates that leave out waiting. They are counted from eight thread blocks per launch, and
assume the clocks and rates in benchmarks/counting/devices.py, which says which of them are published. Issue, L1 and
tensor are clocks of an SM per K step; those of the main loop are issued instructions per K step. Offsets have a
standard deviation of 2 pixels. docs/performance.md says what all this means."""
GEFORCE = """The tensor column of RTX GPUs is for GeForce cards. Data-centre and workstation GPUs of the same
architecture may sum in float32 at the full rate."""
SHOWN = "sm_90"  # the architecture whose kernels the page lists
STATIC = f"""Read from the built module, for {SHOWN}; `python -m benchmarks.machine_code --registers` lists all
architectures. Registers per thread, warps that the registers of an SM have room for, bytes of
stack and local memory per thread (0: nothing is spilled), bytes of static shared memory per block, and the number of
instructions of each kind. Kernels with a number of channels access 16 bytes at a time, or one element if 16 bytes do
not divide the channels."""


def page(results):
    head = f"{results['date']}, {results['compiler']}. No GPU was needed, and nothing here was measured on one."
    size = f"The module with the code for all of these architectures takes {results['module bytes'] / 1e6:.2f} MB."
    shapes = "\n".join(f"- {name}: {shape}" for name, shape in SHAPES.items())
    sections = [
        "# The machine code of the CUDA kernels",
        *map(paragraph, (head, size)),
        f"## Costs of the fused kernels in {results['dtype']}",
        *map(paragraph, (COSTS, GEFORCE)),
        shapes,
        *details(results["launches"]),
        "## Registers and instructions",
        paragraph(STATIC),
        static_table(results["kernels"]),
    ]
    return "\n\n".join(sections) + "\n"


def static_table(rows):
    head, *_ = rows = list(rows)
    lines = [list(head), ["---"] * len(head), *(row.values() for row in rows)]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def static_row(kernel):
    """What the page shows of a kernel, by column."""
    row = {"source": kernel.source, "kernel": f"`{kernel.name}`", "registers": kernel.registers}
    row |= {"resident warps": f"{kernel.resident_warps} of {WARPS}", "stack, local": f"{kernel.stack}, {kernel.local}"}
    row["static shared"] = kernel.shared
    for column, kind in (("loads by bytes", "global loads"), ("stores by bytes", "global stores")):
        row[column] = ", ".join(f"{n} of {width}" for width, n in kernel.widths(kind).items()) or "none"
    for column, kind in (("asynchronous copies",) * 2, ("mma instructions", "matrix instructions")):
        row[column] = ", ".join(f"{n} {opcode}" for opcode, n in kernel.accesses(kind).items()) or "none"
    return row
