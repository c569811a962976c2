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
        f"# The CUDA kernels' machine code\n\n{date.today()}, {compiler}. From the built module, which needs no GPU:",
        "registers a thread, warps that a multiprocessor's registers have room for, bytes of stack and local memory a",
        "thread (0: nothing spilled) and of static shared memory a block, and how many instructions of each kind the",
        "code has. Kernels with a number of channels take 16 bytes at a time, or one element where that does not",
        "divide the channels.",
    ]
    for architecture in architectures():
        text.append(f"\n## {architecture}\n\n{table(kernels(architecture))}")
    path = RESULTS / f"{date.today()}-machine-code.md"
    path.write_text("\n".join(text) + "\n")
    print(path.read_text())


if __name__ == "__main__":
    main()
