"""`python -m benchmarks.machine_code`: tables of the machine code of the CUDA kernels, and of what it costs on GPUs.

The registers and instructions are read from the built module. For the costs, the kernels' PTX is executed on the CPU
for the benchmark's shapes, which takes some minutes. The tables of docs/performance.md are replaced as well.
"""

import json
from datetime import date

from benchmarks.measurements import kernel_costs
from benchmarks.readers.machine_code import architectures, kernels, missing
from benchmarks.reports.kernel_costs import replace_tables, tables
from benchmarks.reports.machine_code import page, static_tables
from benchmarks.reports.report import RESULTS
from jax_dcn._primitive import extension

PERFORMANCE = RESULTS.parents[1] / "docs" / "performance.md"


def main():
    if reason := missing():
        raise SystemExit(reason)
    static = {architecture: kernels(architecture) for architecture in architectures()}
    if reason := kernel_costs.missing():
        print(static_tables(static))
        raise SystemExit(f"No costs, and nothing is written, because PTX cannot be executed: {reason}")
    results = {"date": str(date.today()), "compiler": extension.modules["cuda"].compiler, "dtype": kernel_costs.DTYPE}
    results["launches"] = list(kernel_costs.measure())
    stem = RESULTS / f"{date.today()}-machine-code"
    stem.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    stem.with_suffix(".md").write_text(page(results, static))
    PERFORMANCE.write_text(replace_tables(PERFORMANCE.read_text(), tables(results["launches"])))
    print(stem.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
