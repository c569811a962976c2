"""`python -m benchmarks.cpu_tasks`: how well the fused CPU kernels would occupy up to 64 threads, simulated.

Two threads are measured too. It writes benchmarks/results/<date>-cpu-tasks.md.
"""

from benchmarks.measurements.cpu_tasks import measure
from benchmarks.reports.cpu_tasks import sections
from benchmarks.reports.report import facts, parser, write_page
from benchmarks.support.machine import machine


def main(arguments=None):
    options = parser("cpu_tasks", __doc__)
    options.add_argument("--rounds", type=int, default=5, help="how often the processes take turns; 0: only simulate")
    args = options.parse_args(arguments)
    measured = measure(args.rounds) if args.rounds else {}
    write_page(args.out, "cpu-tasks", "Threads of the fused CPU kernels", [facts(machine()), *sections(measured)])


if __name__ == "__main__":
    main()
