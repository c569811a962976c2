"""`python -m benchmarks.aggregation_costs`: what the CUDA kernels of the aggregation are estimated to cost on GPUs.

It takes minutes, and writes benchmarks/results/<date>-aggregation-costs.md.
"""

from benchmarks.measurements.aggregation_costs import DTYPE, SHAPES, measure
from benchmarks.reports.formatting import digits, markdown
from benchmarks.reports.report import parser, write_page

ABOUT = f"""\
**Nothing was run on a GPU.** The clocks of an SM per thousand taps are counted from machine code and executed PTX,
{DTYPE}: `issue` of instructions, and `L1` for wavefronts. The larger one bounds the time. A thousand taps read
4,000 corners, which take a wavefront each. Shuffles may use the same pipeline as L1. Bytes of the L2 cache are loads
that miss a simulated L1 cache, and all stores. Milliseconds are the larger clocks divided among all SMs at the boost
clock.

The last three kernels are the gradient of value: two sort the samples by location, and one gathers. Vectorized atomics
would move 512 bytes per tap for 32 channels: four corners of 32 floats."""
CORNERS = 4000  # wavefronts per thousand taps: one for each corner
HEAD = ("shape", "GPU", "kernel", "registers", "issue", "L1", "larger / 4,000", "shuffles", "L2 bytes per tap", "ms")


def main(arguments=None):
    args = parser("aggregation_costs", __doc__).parse_args(arguments)
    shapes = "\n".join(f"- {name}: {shape}" for name, shape in SHAPES.items())
    table = markdown([HEAD, *map(cells, measure())])
    write_page(
        args.out, "aggregation-costs", "Estimated cost of the aggregation's CUDA kernels", [ABOUT, shapes, table]
    )


def cells(row):
    clocks = row["clocks per thousand taps"]
    return [
        row["shape"],
        f"{row['gpu']} ({row['architecture']})",
        row["kernel"].partition("<")[0].removesuffix("Kernel"),
        str(row["registers"]),
        *(f"{clocks[key]:,.0f}" for key in ("issue", "L1")),
        digits(max(clocks.values()) / CORNERS),
        f"{row['shuffles per thousand taps']:,.0f}",
        f"{row['bytes of the L2 cache per tap']:,.0f}",
        digits(row["milliseconds"]),
    ]


if __name__ == "__main__":
    main()
