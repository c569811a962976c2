"""`python -m benchmarks.machine_code`: a table of the machine code of the CUDA kernels, read from the built module."""

from datetime import date

from benchmarks.readers.machine_code import architectures, kernels, missing
from benchmarks.reports.machine_code import table
from benchmarks.reports.report import RESULTS
from jax_dcn._primitive import extension


def main():
    if reason := missing():
        raise SystemExit(reason)
    compiler = extension.modules["cuda"].compiler
    text = [
        f"# The machine code of the CUDA kernels\n\n{date.today()}, {compiler}. Read from the built module, without a",
        "GPU: registers per thread, warps that the registers of an SM have room for, bytes of stack and local memory",
        "per thread (0: nothing is spilled), bytes of static shared memory per block, and the number of instructions",
        "of each kind. Kernels with a number of channels access 16 bytes at a time, or one element if 16 bytes do not",
        "divide the channels.",
    ]
    for architecture in architectures():
        text.append(f"\n## {architecture}\n\n{table(kernels(architecture))}")
    path = RESULTS / f"{date.today()}-machine-code.md"
    path.write_text("\n".join(text) + "\n")
    print(path.read_text())


if __name__ == "__main__":
    main()
