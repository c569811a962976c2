"""The page about the machine code of the CUDA kernels."""

from benchmarks.measurements.deform_conv import SHAPES
from benchmarks.measurements.kernel_costs import BATCH, NAMES
from benchmarks.readers.machine_code import WARPS
from benchmarks.reports.formatting import paragraph
from benchmarks.reports.kernel_costs import assumptions, details

COSTS = """Only the fused kernels and the sort have costs: those of the plain path and of PSROI pooling are not counted.
Times are lower bounds. Issue, L1 and tensor are clocks of an SM per K step; those of the main loop are
issued instructions per K step. Offsets have a standard deviation of 2 pixels. docs/performance.md says what all this
means."""
STATIC = """Read from the built module: registers per thread, warps that the registers of an SM have room for, bytes of
stack and local memory per thread (0: nothing is spilled), bytes of static shared memory per block, and the number of
instructions of each kind. Kernels with a number of channels access 16 bytes at a time, or one element if 16 bytes do
not divide the channels."""


def page(results, found):
    head = f"{results['date']}, {results['compiler']}. No GPU was needed, and nothing here was measured on one."
    shapes = "\n".join(f"- {name}: {SHAPES[name]._replace(batch=BATCH)}" for name in NAMES)
    sections = [
        "# The machine code of the CUDA kernels",
        paragraph(head),
        f"## Costs of the fused kernels in {results['dtype']}",
        paragraph(f"{COSTS} {assumptions()}"),
        shapes,
        *details(results["launches"]),
        "## Registers and instructions",
        paragraph(STATIC),
        static_tables(found),
    ]
    return "\n\n".join(sections) + "\n"


def static_tables(found):
    return "\n\n".join(f"### {architecture}\n\n{table(kernels)}" for architecture, kernels in found.items())


def table(found):
    lines = [
        "| source | kernel | registers | resident warps | stack, local | static shared | loads by bytes "
        "| stores by bytes | asynchronous copies | mma instructions |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kernel in found:
        cells = [kernel.source, f"`{kernel.name}`", kernel.registers, f"{kernel.resident_warps} of {WARPS}"]
        cells += [f"{kernel.stack}, {kernel.local}", kernel.shared]
        for kind in ("global loads", "global stores"):
            cells.append(", ".join(f"{n} of {width}" for width, n in kernel.widths(kind).items()) or "none")
        for kind in ("asynchronous copies", "matrix instructions"):
            cells.append(", ".join(f"{n} {opcode}" for opcode, n in kernel.accesses(kind).items()) or "none")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)
