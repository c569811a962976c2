"""`python -m benchmarks.derivatives`: time and memory of forward mode and of second derivatives."""

import jax

from benchmarks.measurements.derivatives import SHAPES, memory, times
from benchmarks.reports.derivatives import sections
from benchmarks.reports.report import facts, parser, write_page
from benchmarks.support.machine import load, machine


def main(arguments=None):
    options = parser("derivatives", __doc__)
    options.add_argument("--repeats", type=int, default=15, help="how often each program is timed")
    args = options.parse_args(arguments)
    about = machine() | {"load average before": load()}
    held = {name: memory(shape) for name, shape in SHAPES.items()}
    seconds = {name: times(shape, args.repeats) for name, shape in SHAPES.items()}
    about["load average after"] = load()
    name = f"{jax.default_backend()}-derivatives"
    write_page(args.out, name, "Derivatives of the deformable convolution", [facts(about), *sections(held, seconds)])


if __name__ == "__main__":
    main()
