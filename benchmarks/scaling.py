"""`python -m benchmarks.scaling`: what devices exchange in a training step, and how much memory they need."""

from datetime import date

import jax

from benchmarks.measurements.scaling import DEVICES
from benchmarks.reports.report import RESULTS
from benchmarks.reports.scaling import sections


def main():
    jax.config.update("jax_num_cpu_devices", max(DEVICES))
    text = "# What devices exchange, and their memory\n\n" + "\n\n".join(sections()) + "\n"
    (RESULTS / f"{date.today()}-scaling.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
