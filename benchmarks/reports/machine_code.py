"""The table of the machine code of the CUDA kernels."""

from benchmarks.readers.machine_code import WARPS


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
