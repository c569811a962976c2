"""`python -m benchmarks.aggregation_costs`: what the CUDA kernels of the aggregation are estimated to cost on GPUs.

It takes minutes, and rewrites a page in `benchmarks/results/`.
"""

from datetime import date

from benchmarks.measurements import aggregation_costs
from benchmarks.reports.aggregation_costs import table
from benchmarks.reports.report import RESULTS

TEXT = """\
# Estimated cost of the aggregation's CUDA kernels

{date}. **Nothing was run on a GPU.** The clocks of an SM per thousand taps are counted from machine code and executed
PTX, {dtype}: `issue` of instructions, and `L1` for wavefronts. The larger one bounds the time. A thousand taps read
4,000 corners, which take a wavefront each. Shuffles may use the same pipeline as L1. Bytes of the L2 cache are loads
that miss a simulated L1 cache, and all stores. Milliseconds are the larger clocks divided among all SMs at the boost
clock.

The last three kernels are the gradient of value: two sort the samples by location, and one gathers. Vectorized atomics
would move 512 bytes per tap for 32 channels: four corners of 32 floats.

{shapes}

{table}
"""


def main():
    shapes = aggregation_costs.SHAPES
    text = TEXT.format(
        date=date.today(),
        dtype=aggregation_costs.DTYPE,
        shapes="\n".join(f"- {name}: {shape}" for name, shape in shapes.items()),
        table=table(aggregation_costs.measure(shapes)),
    )
    path = RESULTS / f"{date.today()}-aggregation-costs.md"
    path.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
