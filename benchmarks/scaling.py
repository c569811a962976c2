"""`python -m benchmarks.scaling`: what devices exchange in a training step, and how much memory they need."""

import jax

from benchmarks.measurements.scaling import DEVICES
from benchmarks.reports.report import parser, write_page
from benchmarks.reports.scaling import sections


def main(arguments=None):
    args = parser("scaling", __doc__).parse_args(arguments)
    jax.config.update("jax_num_cpu_devices", max(DEVICES))
    write_page(args.out, "scaling", "What devices exchange, and their memory", sections())


if __name__ == "__main__":
    main()
